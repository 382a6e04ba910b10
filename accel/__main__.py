"""`python -m accel` is the command line."""

import sys

from accel.cli import main

if __name__ == "__main__":
    sys.exit(main())
