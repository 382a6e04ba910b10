"""Runs what needs a GPU on CUDA in under six minutes, prints tables, writes records.

python -m tests.benchmarks.device --out FOLDER
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from tests.benchmarks.first_block_cache import RECORDS

# Name of the record, module, arguments. The guided run is left to the CPU: it asks nothing new.
CHECKS = (
    ("device-neutral-overhead", "neutral_overhead", ("--rounds", "15")),
    ("device-first-block-cache-28", "first_block_cache", ("--steps", "28", "--rounds", "5")),
    ("device-sparse-attention", "device.sparse", ()),
)


def main() -> int:
    """Returns 0 if every check ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device is visible to torch; nothing was checked", file=sys.stderr)
        return 3
    codes = []
    for name, module, arguments in CHECKS:
        out = str(options.out / f"{name}.json")
        command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
        codes.append(subprocess.call([*command, "--device", "cuda", "--out", out]))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
