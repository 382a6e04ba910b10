"""The same pictures with and without acceleration, in turns, and what the control would have given.

`compare` runs; `Comparison` holds what it found and prints it; `accel.compare_page` writes it down.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from accel import api, compare_table, metrics, record
from accel.bench import Ratio, timed
from accel.control import Control, Solver, equal_time
from accel.errors import OptionError
from accel.handle import Patch
from accel.memory import LightCache
from accel.method import Method
from accel.metrics import Score, Summary
from accel.report import Report
from accel.shot import Shot, steps_of

Judge = Callable[[Sequence[Shot], Sequence[Any]], Mapping[str, float]]
"""Takes shots and their pictures, returns named shares, 0..1, of what was asked and is there."""

_SOLVERS: tuple[Solver, ...] = ("own", "multistep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prompt drawn twice from the same noise.

    Attributes:
        shot: What was asked for.
        plain: The picture without acceleration.
        fast: The picture with it.
        score: How far they are apart.
        reports: What acceleration did, one report for each denoiser.
    """

    shot: Shot
    plain: Any
    fast: Any
    score: Score
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that `compare` found. Prints as a table with its meaning in words.

    Attributes:
        model: What was accelerated, as the user would name it.
        methods: The methods, as they print.
        steps: Denoising steps of every picture.
        pairs: One for each shot.
        ratio: Seconds a picture, A without and B with acceleration, measured in turns.
        controls: Fewer steps at equal time: the own scheduler, then a multistep solver; empty if
            none was asked for.
        off_is_exact: Whether switched-off acceleration gave the very picture of the untouched
            pipeline.
        judged: What a judge said, by name of the side ("plain", "fast", "own", "multistep").
        device: What it ran on.
        versions: With which versions.
    """

    model: str
    methods: tuple[str, ...]
    steps: int
    pairs: tuple[Pair, ...]
    ratio: Ratio
    controls: tuple[Control, ...]
    off_is_exact: bool
    judged: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    device: str = field(default_factory=record.device)
    versions: Mapping[str, str] = field(default_factory=record.versions)

    @property
    def summary(self) -> Summary:
        """Quality of the accelerated pictures, means and worst."""
        return Summary.of(pair.score for pair in self.pairs)

    @property
    def reports(self) -> tuple[Report, ...]:
        """Every report of every pair."""
        return tuple(report for pair in self.pairs for report in pair.reports)

    @property
    def engaged(self) -> bool:
        """Whether anything was skipped in any picture."""
        return any(report.engaged for report in self.reports)

    @property
    def skipped_share(self) -> float:
        """Share of the blocks, or of the modules that a method answers for, that did not run."""
        run = sum(report.parts[0] for report in self.reports)
        skipped = sum(report.parts[1] for report in self.reports)
        return skipped / (run + skipped) if run + skipped else 0.0

    @property
    def verdicts(self) -> tuple[str, ...]:
        """What the numbers mean, in plain sentences, the most important first."""
        return compare_table.verdicts(self)

    def judge(self, judge: Judge) -> Self:
        """Returns this comparison with the judge's word on every side's pictures."""
        shots = [pair.shot for pair in self.pairs]
        sides: dict[str, Sequence[Any]] = {
            "plain": [pair.plain for pair in self.pairs],
            "fast": [pair.fast for pair in self.pairs],
        }
        sides |= {control.solver: control.images for control in self.controls if control.images}
        return replace(self, judged={side: judge(shots, found) for side, found in sides.items()})

    def to_dict(self) -> dict[str, Any]:
        """Returns everything but the pictures as valid JSON."""
        return {
            "model": self.model,
            "methods": list(self.methods),
            "steps": self.steps,
            "device": self.device,
            "versions": dict(self.versions),
            "ratio": self.ratio.to_dict(),
            "quality": self.summary.to_dict(),
            "engaged": self.engaged,
            "blocks_skipped_share": self.skipped_share,
            "off_is_exact": self.off_is_exact,
            "judged": {side: dict(shares) for side, shares in self.judged.items()},
            "controls": [control.to_dict() for control in self.controls],
            "verdicts": list(self.verdicts),
            "pairs": [
                {
                    "prompt": pair.shot.prompt,
                    "seed": pair.shot.seed,
                    "score": pair.score.to_dict(),
                    "reports": [report.to_dict() for report in pair.reports],
                }
                for pair in self.pairs
            ],
        }

    def __str__(self) -> str:
        return compare_table.text(self)


def compare(
    pipe: Any,
    shots: Sequence[Shot],
    methods: Sequence[Method | str] = (),
    *,
    memory: LightCache | None = None,
    rounds: int = 2,
    controls: bool = True,
    on_run: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Returns the pictures of `shots` with and without acceleration, times, quality and controls.

    One unmeasured run of each comes first; then they take turns. The pipeline is left as it was.

    Args:
        pipe: A pipeline that makes pictures.
        shots: What to draw, all with the same size and number of steps.
        methods: What `accel.patch` takes; nothing is the default preset.
        memory: What `accel.patch` takes.
        rounds: How often every shot is drawn by each side, at least 1.
        controls: Whether fewer steps at equal time are tried as well.
        on_run: Called after every picture with what it was for.

    Raises:
        OptionError: there are no shots, or `rounds` is below 1.
    """
    _check(shots, rounds)
    untouched = _warm_up(pipe, shots[0], on_run)
    with api.patch(pipe, *methods, memory=memory) as handle:
        _warm_up(pipe, shots[0], on_run)
        pairs, ratio = _in_turns(pipe, handle, shots, rounds, on_run)
    return Comparison(
        model=type(pipe).__name__,
        methods=tuple(map(str, handle.methods)),
        steps=steps_of(pipe, shots[0]),
        pairs=pairs,
        ratio=ratio,
        controls=_controls(pipe, pairs, ratio, rounds, on_run) if controls else (),
        off_is_exact=metrics.score(untouched, pairs[0].plain).identical,
    )


def _check(shots: Sequence[Shot], rounds: int) -> None:
    if not shots or rounds < 1:
        raise OptionError(
            f"Found {len(shots)} prompts and rounds={rounds}; expected at least one of each."
        )


def _warm_up(pipe: Any, shot: Shot, on_run: Callable[[str], None]) -> Any:
    picture = shot.run(pipe)
    on_run("warm-up")
    return picture


def _controls(
    pipe: Any,
    pairs: Sequence[Pair],
    ratio: Ratio,
    rounds: int,
    on_run: Callable[[str], None],
) -> tuple[Control, ...]:
    drawn = [(pair.shot, pair.plain) for pair in pairs]
    search = partial(equal_time, pipe, drawn, ratio, rounds=rounds)
    return tuple(search(solver=solver, on_run=lambda: on_run("control")) for solver in _SOLVERS)


def _in_turns(
    pipe: Any,
    handle: Patch,
    shots: Sequence[Shot],
    rounds: int,
    on_run: Callable[[str], None],
) -> tuple[tuple[Pair, ...], Ratio]:
    plain_s: list[float] = []
    fast_s: list[float] = []
    pairs: dict[int, Pair] = {}
    for place, shot in [*enumerate(shots)] * rounds:
        handle.disable()
        plain, seconds = _timed_picture(pipe, shot)
        plain_s.append(seconds)
        on_run("A")
        handle.enable()
        handle.reports.clear()
        fast, seconds = _timed_picture(pipe, shot)
        fast_s.append(seconds)
        on_run("B")
        pairs[place] = Pair(
            shot=shot,
            plain=plain,
            fast=fast,
            score=metrics.score(plain, fast),
            reports=tuple(handle.reports),
        )
    return tuple(pairs[place] for place in range(len(shots))), Ratio.of(plain_s, fast_s)


def _timed_picture(pipe: Any, shot: Shot) -> tuple[Any, float]:
    drawn: list[Any] = []
    seconds = timed(lambda: drawn.append(shot.run(pipe)))
    return drawn[0], seconds
