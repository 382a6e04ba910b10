"""Writes caching/MODELS.md: `python -m tests.benchmarks.coverage`."""

import diffusers

from tests.coverage.verdict import TABLE, document, every_verdict


def main() -> None:
    """Asks every class and writes the page."""
    release = ".".join(diffusers.__version__.split(".")[:2])
    TABLE.write_text(document(every_verdict(), release), "utf-8")
    print(TABLE)


if __name__ == "__main__":
    main()
