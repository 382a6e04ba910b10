"""What a plan costs before it runs: FLOPs, seconds, bytes held, energy, and the speed-up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from accel.errors import AccelError, OptionError
from accel.flops import count
from accel.latency import Device, stored
from accel.method import Method, for_denoiser
from accel.models import is_unet
from accel.observe import Observed, observe
from accel.parts import sites_to_count
from accel.report import Report
from accel.session import Seen
from accel.work import Part, Run

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A whole generation, with or without methods, as far as the denoiser is concerned.

    Attributes:
        flops: of all evaluations.
        seconds, joules: predicted; None where nobody measured the device.
    """

    flops: float
    seconds: float | None = None
    joules: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What methods are predicted to make of a generation. Prints as a short table.

    Attributes:
        model: class name of the denoiser; methods: as they print.
        evaluations: how many; calls: of the denoiser in each.
        tokens: of the picture, in the first block.
        parts: FLOPs of one evaluation without methods, by part.
        weights, moved: bytes of parameters, and of activations moved by one evaluation.
        plain, planned: the generation without and with the methods.
        held: bytes of features that the methods keep.
        device: what the seconds are for, or why there are none.
        notes: what the numbers leave out.
    """

    model: str
    methods: tuple[str, ...]
    evaluations: int
    calls: int
    tokens: int
    parts: Mapping[Part, float]
    weights: float
    moved: float
    plain: Side
    planned: Side
    held: int = 0
    device: str = ""
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times faster the denoiser gets: in seconds if they are known, else in FLOPs."""
        if self.plain.seconds is not None and self.planned.seconds:
            return self.plain.seconds / self.planned.seconds
        return self.plain.flops / self.planned.flops if self.planned.flops else 1.0

    @property
    def summary(self) -> str:
        """The speed-up in one line."""
        if self.planned.seconds is None:
            basis = f"in FLOPs, {self.device}"
        else:
            plain, planned = self.plain.seconds, self.planned.seconds
            basis = f"{planned:.3g} s in the denoiser instead of {plain:.3g} s"
        return f"{self.speedup:.2f}x predicted ({basis}), {self.held / _MIB:.1f} MiB held"

    def to_dict(self) -> dict[str, Any]:
        """The numbers for JSON."""
        return {**asdict(self), "speedup": self.speedup}

    def __str__(self) -> str:
        return "\n".join(f"{name:<10} {text}" for name, text in self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        total = sum(self.parts.values())
        weights, moved = self.weights / _MIB, self.moved / _MIB
        beside = "what multiplies nothing moves"
        each = f"{self.calls} call{'s' * (self.calls > 1)} each"
        rows = [
            ("model", f"{self.model}, {self.tokens} tokens"),
            ("methods", ", ".join(self.methods) or "none"),
            ("steps", f"{self.evaluations} evaluations, {each}"),
            ("work", f"{amount(total)}FLOP an evaluation"),
            *(("", f"{count / total:6.1%}  {part}") for part, count in self.parts.items() if count),
            ("bytes", f"{weights:.1f} MiB of weights; {beside} {moved:.1f} MiB an evaluation"),
            ("speed-up", self.summary),
            ("energy", self._energy()),
        ]
        return [*rows, *(("note", note) for note in self.notes)]

    def _energy(self) -> str:
        if self.plain.joules is None or self.planned.joules is None:
            return "unknown: the device does not tell its power, or was not measured"
        return (
            f"{self.planned.joules:.3g} J in the denoiser instead of {self.plain.joules:.3g} J, at "
            "its mean power under load"
        )


def amount(number: float) -> str:
    """A number with a prefix: 74.4e12 is "74.4 T"."""
    for size, letter in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g} "


def predict(pipe: Any, *methods: Method, device: Device | None = None, **call: Any) -> Forecast:
    """What these methods would make of a call of a pipeline; the denoiser does not run.

    Args:
        pipe: an unpatched pipeline; it is left as it was.
        methods: as for `accel.patch`, instances only.
        device: what seconds are predicted for. Left out, what was measured here before, if anything
            was; `accel.latency.calibrated` measures.
        call: the pipeline's arguments.

    Raises:
        OptionError: if the pipeline takes no such call.
        AccelUnsupportedError: if its denoiser cannot be counted, or a method cannot work on it.
        ConflictError: if it is patched.
    """
    return forecast(observe(pipe, **call), methods, device)


def forecast(
    observed: Observed, methods: Sequence[Method], device: Device | None = None
) -> Forecast:
    """What these methods would make of what was observed.

    Args:
        observed: a generation.
        methods: instances, in any order.
        device: as for `predict`.

    Raises:
        AccelUnsupportedError: if a method cannot work on the denoiser.
    """
    known = device or stored(observed.device, observed.dtype)
    plain = tuple(Run.of(work, observed.evaluations, observed.times) for work in observed.calls)
    planned, chosen = _priced(observed, methods, plain)
    notes = [note for run in planned for note in run.notes]
    notes += [
        f"{name} is not counted: the first evaluation does without it" for name in observed.others
    ]
    first = observed.calls[0]
    return Forecast(
        model=first.model,
        methods=tuple(map(str, chosen)),
        evaluations=observed.evaluations,
        calls=len(observed.calls),
        tokens=first.tokens,
        parts={part: sum(work.flops[part] for work in observed.calls) for part in Part},
        weights=first.weights,
        moved=sum(work.moved for work in observed.calls),
        plain=_side(plain, known),
        planned=_side(planned, known),
        held=sum(run.held for run in planned),
        device="since this device was not measured" if known is None else known.name,
        notes=tuple(dict.fromkeys(notes)),
    )


def _priced(
    observed: Observed, methods: Sequence[Method], runs: Sequence[Run]
) -> tuple[tuple[Run, ...], tuple[Method, ...]]:
    sites = sites_to_count(observed.module)
    unet = is_unet(observed.module)
    chosen = [method.suited(unet=unet) for method in for_denoiser(methods, observed.name)]
    priced = []
    for run in runs:
        left = run
        for method in sorted(chosen, key=lambda method: method.order):
            left = method.price(sites, left)
        priced.append(left)
    return tuple(priced), tuple(chosen)


def _side(runs: Sequence[Run], device: Device | None) -> Side:
    flops = sum(run.flops for run in runs)
    if device is None:
        return Side(flops=flops)
    seconds = sum(device.seconds_of(run) for run in runs)
    return Side(flops=flops, seconds=seconds, joules=device.joules(seconds))


def observed_before(seen: Seen, module: nn.Module, name: str) -> Observed:
    """What a generation that has run asked of its denoiser, from the shapes of its first calls.

    Args:
        seen: what the session wrote down.
        module: the denoiser.
        name: of the pipeline's component.

    Raises:
        OptionError: if it called nothing.
        AccelUnsupportedError: if the model looks at the values of its inputs.
    """
    if not seen.inputs:
        raise OptionError("The generation called no denoiser; expected one that ran a step.")
    seen.works = seen.works or tuple(count(module, inputs).work for inputs in seen.inputs)
    return Observed(
        module=module,
        name=name,
        calls=seen.works,
        evaluations=seen.evaluations,
        times=seen.times,
        device=seen.device,
        dtype=seen.dtype,
    )


def cost_line(
    seen: Seen,
    module: nn.Module,
    name: str,
    methods: Sequence[Method],
    reports: Iterable[Report],
) -> str:
    """What a generation that has run was predicted to gain, and the seconds that it took.

    Args:
        seen: what the session wrote down.
        module: the denoiser.
        name: of the pipeline's component.
        methods: that were on.
        reports: the newest last; the newest of this denoiser tells the seconds.
    """
    model = type(module).__name__
    try:
        found = forecast(observed_before(seen, module, name), methods)
    except AccelError as error:
        return f"{model}: unknown. {error}"
    newest = [report for report in reports if report.model == model][-1:]
    took = "".join(f"; {report.denoiser_seconds:.3g} s measured" for report in newest)
    return f"{model}: {found.summary}{took}"
