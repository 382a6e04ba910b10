"""The control: the same pipeline with fewer steps, at the time that acceleration took.

Whoever accelerates a pipeline could have asked for fewer steps instead. That is stronger than it
looks, more so with a second-order multistep solver, so there are two controls: the pipeline's own
scheduler, and for flow models UniPC (order 2, flow sigmas), for others DPM-Solver++ (order 2).
On a Gaussian flow with a known solution UniPC comes closer than DPM-Solver++ at 4 to 100 steps.

What was checked in diffusers 0.42.1 for the flow case: UniPC's flow sigmas are
`linspace(1, 1/1000, N + 1)[:-1]`, which is FluxPipeline's `linspace(1, 1/N, N)` to within 1/1000,
shifted by the same formula (`mu` for dynamic shifting, else `flow_shift` for `shift`), with 0 at
the end; FluxPipeline passes `sigmas=None` when `use_flow_sigmas` is set, and `mu` always.
DPMSolverMultistepScheduler refuses `mu` without dynamic shifting, so it does not serve here.
UniPC truncates timesteps to integers of 1/1000. That costs nothing at the step counts of interest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any, Literal

from accel import metrics
from accel.bench import Ratio, timed
from accel.errors import AccelUnsupportedError, OptionError
from accel.metrics import Score, Summary
from accel.shot import Shot, steps_of

Solver = Literal["own", "multistep"]

_MULTISTEP = ("UniPCMultistep", "DPMSolverMultistep", "DEISMultistep", "LMSDiscrete", "PNDM")
# How often the pair of neighbouring step counts may move before the search settles.
_MOVES = 4
_HALF = 0.5
_FLOW_OPTIONS_WITHOUT_COUNTERPART = (
    "invert_sigmas",
    "stochastic_sampling",
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
)
_FLOW_OPTIONS_SHARED = (
    "num_train_timesteps",
    "use_dynamic_shifting",
    "time_shift_type",
    "shift_terminal",
)
_FLOW_SHIFTS = ("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the same time buys with fewer steps.

    The wanted time lies between two step counts; quality is interpolated between them in the
    place where the line through all measured times meets the wanted one.

    Attributes:
        solver: "own" or "multistep".
        scheduler: Class name of the scheduler that was used.
        target_s: The time to be met, in seconds.
        low_steps: The step count below, at least 1.
        high_steps: The step count above, at most the pipeline's full number.
        low_s: Median seconds with `low_steps`.
        high_s: Median seconds with `high_steps`.
        weight: 0 takes all of the lower step count, 1 all of the upper.
        scores: One per picture, against the unaccelerated picture with the full number of steps.
        images: The pictures of the nearer of the two step counts.
        unavailable: Why there is no such control, else empty.
    """

    solver: Solver
    scheduler: str = ""
    target_s: float = 0.0
    low_steps: int = 0
    high_steps: int = 0
    low_s: float = 0.0
    high_s: float = 0.0
    weight: float = 0.0
    scores: tuple[Score, ...] = ()
    images: tuple[Any, ...] = ()
    unavailable: str = ""

    @property
    def steps(self) -> float:
        """The step count, between two whole numbers, that takes `target_s`."""
        return self.low_steps + self.weight * (self.high_steps - self.low_steps)

    @property
    def shown_steps(self) -> int:
        """The step count of `images`."""
        return self.high_steps if self.weight >= _HALF else self.low_steps

    @property
    def summary(self) -> Summary:
        """Quality over all pictures, means and worst."""
        return Summary.of(self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers for JSON, without pictures."""
        if self.unavailable:
            return {"solver": self.solver, "unavailable": self.unavailable}
        return {
            "solver": self.solver,
            "scheduler": self.scheduler,
            "target_s": self.target_s,
            "steps": self.steps,
            "neighbours": [
                {"steps": self.low_steps, "median_s": self.low_s},
                {"steps": self.high_steps, "median_s": self.high_s},
            ],
            "quality": self.summary.to_dict(),
            "scores": [score.to_dict() for score in self.scores],
        }


def equal_time(
    pipe: Any,
    pairs: Sequence[tuple[Shot, Any]],
    measured: Ratio | float,
    *,
    solver: Solver = "own",
    rounds: int = 3,
    on_run: Callable[[], None] = lambda: None,
) -> Control:
    """Returns the quality that fewer steps reach in the time of the accelerated pipeline.

    The number of steps is found by timing real runs, full ones and short ones in turns, never by
    assuming that time is proportional to steps: text encoder and decoder take their share.

    Args:
        pipe: The pipeline, not accelerated. Its scheduler is put back whatever happens.
        pairs: What to draw, and beside each the unaccelerated picture with all its steps.
        measured: Seconds of the accelerated pipeline, above 0. Or its ratio to the unaccelerated
            one (the median of pairs); then the wanted time is that share of what the full run
            takes now, however much slower or faster the machine has become since.
        solver: "own" keeps the pipeline's scheduler, "multistep" takes `multistep(scheduler)`.
        rounds: Timed runs for every number, at least 1.
        on_run: Called after every picture, for a progress bar.

    Raises:
        OptionError: there are no pairs, or a number lies outside its range.
    """
    _check(pairs, measured, rounds)
    own = getattr(pipe, "scheduler", None)
    try:
        chosen = own if solver == "own" else multistep(own)
    except AccelUnsupportedError as error:
        return Control(solver=solver, unavailable=str(error))
    runs = _Runs(pipe, [shot for shot, _ in pairs], chosen, on_run)
    full = steps_of(pipe, pairs[0][0])
    steps = _search(runs, full, measured, rounds)
    control = Control(solver=solver, scheduler=type(chosen).__name__)
    return _settled(control, runs, steps, full, [picture for _, picture in pairs])


def _settled(
    control: Control, runs: "_Runs", steps: float, full: int, references: Sequence[Any]
) -> Control:
    low = min(math.floor(steps), max(full - 1, 1))
    high = min(low + 1, full)
    weight = steps - low
    below, above = runs.pictures(low), runs.pictures(high)
    trios = zip(references, below, above, strict=True)
    return replace(
        control,
        target_s=runs.line().at(steps),
        low_steps=low,
        high_steps=high,
        low_s=runs.median(low),
        high_s=runs.median(high),
        weight=weight,
        scores=tuple(_between(*trio, weight) for trio in trios),
        images=above if weight >= _HALF else below,
    )


def multistep(scheduler: Any) -> Any:
    """Returns a second-order multistep scheduler over the noise levels of `scheduler`.

    Raises:
        AccelUnsupportedError: it is one already, or its noise levels are of a kind for which no
            multistep scheduler is known here.
    """
    name = type(scheduler).__name__
    config = dict(getattr(scheduler, "config", None) or {})
    if name.startswith(_MULTISTEP):
        raise AccelUnsupportedError(
            f"the pipeline's own {name} is a multistep solver: the other control is this one"
        )
    import diffusers

    if name.startswith("FlowMatch"):
        return _flow_multistep(diffusers.UniPCMultistepScheduler, scheduler, name, config)
    if "prediction_type" not in config:
        raise AccelUnsupportedError(
            f"no multistep counterpart of {name} is known: its config names no prediction_type"
        )
    return diffusers.DPMSolverMultistepScheduler.from_config(
        config, algorithm_type="dpmsolver++", solver_order=2
    )


def _flow_multistep(unipc: Any, scheduler: Any, name: str, config: dict[str, Any]) -> Any:
    for option in _FLOW_OPTIONS_WITHOUT_COUNTERPART:
        if config.get(option):
            raise AccelUnsupportedError(
                f"no multistep counterpart of {name} with {option}=True is known"
            )
    shared = {key: config[key] for key in _FLOW_OPTIONS_SHARED if key in config}
    # The shift in force: set_shift may have changed it since the config was written.
    shift = getattr(scheduler, "shift", config.get("shift", 1.0))
    chosen = unipc(
        **shared,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
        solver_order=2,
    )
    # Pipelines compute `mu` from these with defaults of their own, so they must be there to read.
    chosen.register_to_config(**{key: config[key] for key in _FLOW_SHIFTS if key in config})
    return chosen


@dataclass(frozen=True, slots=True)
class _Line:
    """Seconds as a fixed part and a part for every step."""

    fixed_s: float
    step_s: float

    def at(self, steps: float) -> float:
        return self.fixed_s + self.step_s * steps

    def steps(self, seconds: float) -> float:
        return (seconds - self.fixed_s) / self.step_s


class _Runs:
    """Timed pictures by step count, of the solver under test and, for its full runs, of the own."""

    def __init__(
        self, pipe: Any, shots: Sequence[Shot], chosen: Any, on_run: Callable[[], None]
    ) -> None:
        self._pipe = pipe
        self._shots = shots
        self._chosen = chosen
        self._on_run = on_run
        self._seconds: list[tuple[int, float]] = []
        self._pictures: dict[tuple[int, int], Any] = {}

    def full(self, steps: int) -> None:
        """Times one picture with the pipeline's own scheduler."""
        self._seconds.append((steps, timed(lambda: self._shots[0].run(self._pipe, steps=steps))))
        self._on_run()

    def few(self, steps: int, place: int = 0) -> None:
        """Times and keeps one picture of the solver under test."""

        def run() -> None:
            self._pictures[steps, place] = self._shots[place].run(self._pipe, steps=steps)

        with _scheduler(self._pipe, self._chosen):
            self._seconds.append((steps, timed(run)))
            self._on_run()

    def median(self, steps: int) -> float:
        """Median seconds with that many steps."""
        return median(seconds for count, seconds in self._seconds if count == steps)

    def pictures(self, steps: int) -> tuple[Any, ...]:
        """All pictures with that many steps, drawn now where they have not been."""
        places = range(len(self._shots))
        for place in places:
            if (steps, place) not in self._pictures:
                self.few(steps, place)
        return tuple(self._pictures[steps, place] for place in places)

    def line(self) -> _Line:
        """The line through all times so far: the median slope between any two runs (Theil-Sen).

        A run that was disturbed does not move it, and neighbouring step counts, whose times
        differ by less than the noise, borrow from runs further apart.
        """
        slopes = [
            (later - earlier) / (more - fewer)
            for (fewer, earlier), (more, later) in combinations(self._seconds, 2)
            if more != fewer
        ]
        slope = median(slopes) if slopes else 0.0
        if slope <= 0.0:
            slope = median(seconds / steps for steps, seconds in self._seconds)
        return _Line(median(seconds - slope * steps for steps, seconds in self._seconds), slope)


def _search(runs: _Runs, full: int, measured: Ratio | float, rounds: int) -> float:
    """The step count, from 1 to `full`, that takes the wanted time."""
    for _ in range(rounds):
        runs.full(full)
        runs.few(max(full // 2, 1))
    steps = _wanted(runs.line(), full, measured)
    for _ in range(_MOVES):
        low = math.floor(steps)
        for turn in range(2 * rounds):
            runs.few(min(low + turn % 2, full))
        steps, before = _wanted(runs.line(), full, measured), steps
        if math.floor(steps) == math.floor(before):
            break
    return steps


def _wanted(line: _Line, full: int, measured: Ratio | float) -> float:
    seconds = line.at(full) / measured.paired.median if isinstance(measured, Ratio) else measured
    return min(max(line.steps(seconds), 1.0), float(full))


@contextmanager
def _scheduler(pipe: Any, scheduler: Any) -> Iterator[None]:
    own = pipe.scheduler
    pipe.scheduler = scheduler
    try:
        yield
    finally:
        pipe.scheduler = own


def _between(reference: Any, below: Any, above: Any, weight: float) -> Score:
    """The score between two pictures, interpolated in squared error, in which PSNR is finite."""
    low, high = metrics.score(reference, below), metrics.score(reference, above)

    def mix(first: float, second: float) -> float:
        return first + weight * (second - first)

    return Score(
        psnr=metrics.psnr_of(mix(_mse(low), _mse(high))),
        ssim=mix(low.ssim, high.ssim),
        mae=mix(low.mae, high.mae),
        max_error=mix(low.max_error, high.max_error),
    )


def _mse(score: Score) -> float:
    return 0.0 if math.isinf(score.psnr) else 10.0 ** (-score.psnr / 10.0)


def _check(pairs: Sequence[object], measured: Ratio | float, rounds: int) -> None:
    if not pairs:
        raise OptionError("Found no pictures to compare with; give at least one shot and picture.")
    seconds = measured.b_s.median if isinstance(measured, Ratio) else measured
    if not (seconds > 0 and math.isfinite(seconds)) or rounds < 1:
        raise OptionError(
            f"Found a time of {seconds} seconds and rounds={rounds}; expected seconds above 0 and "
            "at least one round."
        )
