"""Speed as a ratio measured in one process.

Two machines, two days or two processes do not give comparable seconds. So the two sides take turns
(A B A B ...), and what is reported is a ratio with its spread. `python -m accel.bench` measures a
method on a small model and checks records; `accel.record` says what a record is.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel.errors import OptionError
from accel.record import RECORD_KEYS, read_record, write_record

__all__ = [
    "RECORD_KEYS",
    "Ratio",
    "Spread",
    "ratio",
    "read_record",
    "synchronise",
    "timed",
    "write_record",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle of some repeated measurements and how far they scatter.

    Attributes:
        median: The 50th percentile.
        p20: The 20th percentile.
        p80: The 80th percentile.
        samples: Every measurement, in the order in which it was taken.
    """

    median: float
    p20: float
    p80: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Returns the spread of `samples`, percentiles interpolated linearly.

        Raises:
            OptionError: there is no sample.
        """
        if not samples:
            raise OptionError("Found no measurements; at least one round is needed.")
        return cls(
            median=statistics.median(samples),
            p20=_percentile(samples, 0.2),
            p80=_percentile(samples, 0.8),
            samples=tuple(samples),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers for JSON."""
        return {
            "median": self.median,
            "p20": self.p20,
            "p80": self.p80,
            "samples": list(self.samples),
        }

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.p20:.3f} to {self.p80:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times faster B is than A, measured in turns.

    Attributes:
        a_s: Seconds of A.
        b_s: Seconds of B.
        of_medians: Median of A divided by median of B; above 1 B is faster.
        paired: The ratios A/B of neighbouring runs. Their median hardly moves when the machine
            slows down for a while, since both sides of a pair slow down together.
    """

    a_s: Spread
    b_s: Spread
    of_medians: float
    paired: Spread

    @classmethod
    def of(cls, a_s: Sequence[float], b_s: Sequence[float]) -> "Ratio":
        """Returns the ratio of two equally long lists of seconds, paired by position.

        Raises:
            OptionError: the lists are empty or differ in length.
        """
        if len(a_s) != len(b_s):
            raise OptionError(
                f"Found {len(a_s)} runs of A and {len(b_s)} of B; runs are compared in pairs."
            )
        first, second = Spread.of(a_s), Spread.of(b_s)
        pairs = [a / b for a, b in zip(a_s, b_s, strict=True)]
        return cls(
            a_s=first, b_s=second, of_medians=first.median / second.median, paired=Spread.of(pairs)
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers for JSON."""
        return {
            "a_s": self.a_s.to_dict(),
            "b_s": self.b_s.to_dict(),
            "of_medians": self.of_medians,
            "paired": self.paired.to_dict(),
        }

    def __str__(self) -> str:
        return (
            f"A {self.a_s} s, B {self.b_s} s over {len(self.paired.samples)} rounds; "
            f"A/B of medians {self.of_medians:.3f}, of pairs {self.paired}"
        )


def ratio(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    rounds: int = 5,
    warmup: int = 1,
    seed: int | None = None,
) -> Ratio:
    """Returns how many times faster `b` is than `a`, running A B A B ... in this process.

    Args:
        a: The reference, called without arguments.
        b: What is compared with it.
        rounds: Measured pairs, at least 1; 5 or more for a number that is published.
        warmup: Pairs run before that and not measured, at least 0.
        seed: If given, `torch.manual_seed(seed + round)` precedes both runs of a round, so that
            they see the same random numbers.

    Raises:
        OptionError: `rounds` or `warmup` lies outside its range.
    """
    if rounds < 1 or warmup < 0:
        raise OptionError(
            f"Found rounds={rounds} and warmup={warmup}; expected rounds >= 1 and warmup >= 0."
        )
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(-warmup, rounds):
        for side, run in zip(seconds, (a, b), strict=True):
            if seed is not None:
                torch.manual_seed(seed + turn)
            elapsed = timed(run)
            if turn >= 0:
                side.append(elapsed)
    return Ratio.of(*seconds)


def timed(run: Callable[[], object]) -> float:
    """Returns the seconds that `run` takes, waiting for the accelerator before and after."""
    synchronise()
    start = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - start


def synchronise() -> None:
    """Waits until the accelerator, where there is one, has finished everything it was given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _percentile(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


if __name__ == "__main__":
    from accel.cli import main

    sys.exit(main(["bench", *sys.argv[1:]]))
