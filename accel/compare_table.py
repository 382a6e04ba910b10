"""A comparison as a table and in plain sentences, for the terminal and the page alike."""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from accel import metrics
from accel.metrics import Score, Summary

if TYPE_CHECKING:
    from accel.compare import Comparison
    from accel.control import Control

HEADER = ("", "steps", "seconds", "PSNR dB", "worst", "SSIM", "worst")
"""The columns of `rows`; a judge adds its own."""

# Blocks differ in cost; still, a speed-up this much above what their number gives is noise.
_EXPLAINED = 1.25
# A control this much closer counts as better; less is within what other prompts would change.
_CLEARLY_DB = 0.1


def header(comparison: "Comparison") -> tuple[str, ...]:
    """Returns the column names, those of the judge at the end."""
    return (*HEADER, *comparison.judged.get("plain", {}))


def rows(comparison: "Comparison") -> tuple[tuple[str, ...], ...]:
    """Returns one row for each way to spend the time: plain, accelerated, and the controls."""
    plain = ("unaccelerated", str(comparison.steps), _seconds(comparison.ratio.a_s.median))
    fast = ("accelerated", str(comparison.steps), _seconds(comparison.ratio.b_s.median))
    found = [
        (*plain, "reference", "", "", "", *_shares(comparison, "plain")),
        (*fast, *quality(comparison.summary), *_shares(comparison, "fast")),
    ]
    there = (control for control in comparison.controls if not control.unavailable)
    return (*found, *(_control_row(comparison, control) for control in there))


def facts(comparison: "Comparison") -> tuple[tuple[str, str], ...]:
    """Returns what was compared and what acceleration did, name and text."""
    ratio, summary = comparison.ratio, comparison.summary
    calls = sum(report.calls for report in comparison.reports)
    reused = sum(report.reused for report in comparison.reports)
    speed = (
        f"{ratio.paired.median:.2f} times: median of {len(ratio.paired.samples)} pairs A/B in "
        f"turns, 20th to 80th percentile {ratio.paired.p20:.2f} to {ratio.paired.p80:.2f} "
        f"(A/B of medians {ratio.of_medians:.2f})"
    )
    skipped = (
        f"{comparison.skipped_share:.0%} of the blocks or modules; "
        f"{reused} of {calls} denoiser calls reused work"
    )
    found = [
        ("model", comparison.model),
        ("acceleration", ", ".join(comparison.methods) or "none"),
        ("pictures", f"{summary.count}, {summary.identical} of them identical"),
        ("speed-up", speed),
        ("skipped", skipped),
        ("device", comparison.device),
    ]
    unavailable = [control for control in comparison.controls if control.unavailable]
    # The first picture speaks for all: what is worth a note differs only in its numbers.
    notes = [note for report in comparison.pairs[0].reports for note in report.warnings]
    return (
        *found,
        *(("no control", control.unavailable) for control in unavailable),
        *(("note", note) for note in notes),
    )


def text(comparison: "Comparison") -> str:
    """Returns the whole comparison for a terminal."""
    named = facts(comparison)
    width = max(len(name) for name, _ in named)
    lines = [f"{name:<{width}}  {told}" for name, told in named]
    return "\n".join([*lines, "", *_aligned(comparison), "", *verdicts(comparison)])


def verdicts(comparison: "Comparison") -> tuple[str, ...]:
    """Returns what the numbers mean, in plain sentences, the most important first."""
    return tuple(_verdicts(comparison))


def quality(summary: Summary) -> tuple[str, str, str, str]:
    """Returns mean and worst PSNR, mean and worst SSIM, as cells of a table."""
    return (
        decibels(summary.psnr_mean),
        decibels(summary.psnr_worst),
        f"{summary.ssim_mean:.4f}",
        f"{summary.ssim_worst:.4f}",
    )


def decibels(value: float) -> str:
    """Returns a PSNR as a cell of a table."""
    return "identical" if math.isinf(value) else f"{value:.2f}"


def control_name(control: "Control") -> str:
    """Returns how the control is called in tables, without the last words of its scheduler."""
    scheduler = control.scheduler.removesuffix("Scheduler").removesuffix("Discrete")
    return f"fewer steps, {scheduler}"


def pooled_psnr(scores: Iterable[Score]) -> float:
    """Returns the PSNR of all pictures taken as one, in which identical pictures count too."""
    return metrics.psnr_of(fmean(10.0 ** (-score.psnr / 10.0) for score in scores))


def _verdicts(comparison: "Comparison") -> Iterator[str]:
    ratio = comparison.ratio
    if not comparison.engaged:
        yield (
            "Nothing engaged: not one denoiser call reused work, so no speed-up can be expected. "
            "Take a faster preset or a higher threshold, or more steps."
        )
    elif ratio.paired.p20 <= 1.0:
        yield (
            f"No clear speed-up: {ratio.paired.p20:.2f} to {ratio.paired.p80:.2f} times as fast. "
            "Skipped work is worth less than its bookkeeping here, or the machine is busy."
        )
    else:
        yield f"{ratio.paired.median:.2f} times as fast; {_quality_sentence(comparison.summary)}"
    if comparison.engaged and ratio.paired.median * (1 - comparison.skipped_share) > _EXPLAINED:
        yield (
            f"No faith in {ratio.paired.median:.2f} times: skipping {comparison.skipped_share:.0%} "
            "of the blocks or modules does not explain it. The machine was busy; measure with more "
            "--rounds."
        )
    if comparison.engaged:
        yield from _control_verdicts(comparison)
    if not comparison.off_is_exact:
        yield (
            "Switched off, the picture differs from that of the untouched pipeline. Is the "
            "pipeline deterministic on this device? If so, this is a fault of accel."
        )


def _quality_sentence(summary: Summary) -> str:
    if summary.identical == summary.count:
        return "every picture is identical to the unaccelerated one."
    return (
        f"PSNR {_told(summary.psnr_mean)} on average and {_told(summary.psnr_worst)} in the "
        "worst picture, against the unaccelerated ones."
    )


def _control_verdicts(comparison: "Comparison") -> Iterator[str]:
    ours = pooled_psnr(pair.score for pair in comparison.pairs)
    for control in comparison.controls:
        if control.unavailable:
            continue
        theirs = pooled_psnr(control.scores)
        told = f"{control.steps:.1f} steps with {control.scheduler}"
        numbers = f"{_told(ours)} against {_told(theirs)}, all pictures pooled"
        if theirs > ours + _CLEARLY_DB:
            yield f"The control is better: in the same time, {told} come closer ({numbers})."
        elif ours > theirs + _CLEARLY_DB:
            yield f"Better than {told} in the same time ({numbers})."
        else:
            yield f"No better than {told} in the same time ({numbers})."


def _told(psnr: float) -> str:
    return "identical" if math.isinf(psnr) else f"{psnr:.2f} dB"


def _control_row(comparison: "Comparison", control: "Control") -> tuple[str, ...]:
    return (
        control_name(control),
        f"{control.steps:.1f}",
        _seconds(comparison.ratio.b_s.median),
        *quality(control.summary),
        *_shares(comparison, control.solver),
    )


def _shares(comparison: "Comparison", side: str) -> tuple[str, ...]:
    return tuple(f"{share:.0%}" for share in comparison.judged.get(side, {}).values())


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _aligned(comparison: "Comparison") -> Iterator[str]:
    lines: Sequence[tuple[str, ...]] = (header(comparison), *rows(comparison))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()
