"""What one generation did: every decision with its reason, seconds, bytes, warnings in words."""

import html
import json
import math
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from itertools import product
from typing import Any, Protocol, Self

import torch
from torch import Tensor

REUSING = frozenset({"reused", "forecast"})
# What makes a call cheaper: reuse between steps, or less attention within one.
SAVING = REUSING | {"sparse"}
# So many features that did not fit are named in a sentence.
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for one denoiser call.

    Attributes:
        step: evaluation, counted from 0.
        branch: guidance branch.
        action: "computed", "reused", "forecast" (extrapolated), "sparse" (attention computed some
            of its scores), or "forced" (a guard overruled the method).
        reason: why, in a few words.
        value: the measured change that was compared with the threshold, if one was.
        error: relative L1 distance between what would have been predicted and what a computed call
            gave, where reuse went before it; of sparse attention the relative L2 distance of its
            output from the exact one, where some queries were sampled (the largest of any head).
        blocks_run: transformer blocks that ran, on half of the batch half of them; in a UNet
            layers, each a resnet and what follows it.
        blocks_skipped: those that did not.
        modules_run: modules that ran, of those that a module cache may answer for, counted alike.
        modules_skipped: those of them that did not; of one that computed some tokens, so much as
            those are of it counts as having run.
        tokens_run: tokens of one picture that ran in modules that computed only some of them, each
            module's counted.
        tokens_skipped: those of them that did not.
        scores_run: scores (of one query and one key) that ran in attention that was offered to a
            sparse method; attention that the method left alone for its place is not counted.
        scores_skipped: those of them that did not.
    """

    step: int
    branch: str
    action: str
    reason: str
    value: float | None = None
    error: float | None = None
    blocks_run: int = 0
    blocks_skipped: int = 0
    modules_run: int = 0
    modules_skipped: int = 0
    tokens_run: int = 0
    tokens_skipped: int = 0
    scores_run: int = 0
    scores_skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one generation of one denoiser did.

    Prints as a short table; `to_json` and `from_dict` round-trip.

    Attributes:
        model: class name of the denoiser.
        methods: the methods, as they print.
        steps: model evaluations that ran; num_steps: how many the scheduler planned.
        calls: denoiser calls (guidance in two calls has two a step).
        decisions: one a call, in order.
        seconds: the whole pipeline call; denoiser_seconds: the part inside the denoiser.
        bytes_held: bytes of cached features at the end of the generation.
        most_on_device, most_on_host: the most bytes of them at any time on the device and, swapped
            out, on the host, over all denoisers; None where `LightCache` did not count them.
        not_kept: bytes of what did not fit into its budget, by name.
        device: where the denoiser ran; versions: of what matters for a comparison.
        warnings: what a user should know, in plain words.
    """

    model: str = ""
    methods: tuple[str, ...] = ()
    steps: int = 0
    num_steps: int | None = None
    calls: int = 0
    decisions: tuple[Decision, ...] = ()
    seconds: float = 0.0
    denoiser_seconds: float = 0.0
    bytes_held: int = 0
    most_on_device: int | None = None
    most_on_host: int | None = None
    not_kept: Mapping[str, int] = field(default_factory=dict)
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def reused(self) -> int:
        """Denoiser calls that reused or forecast work."""
        return sum(decision.action in REUSING for decision in self.decisions)

    @property
    def engaged(self) -> bool:
        """Whether anything was skipped at all."""
        return any(decision.action in SAVING for decision in self.decisions)

    @property
    def blocks_run(self) -> int:
        """Transformer blocks that ran, over all calls."""
        return sum(decision.blocks_run for decision in self.decisions)

    @property
    def blocks_skipped(self) -> int:
        """Transformer blocks that did not run, over all calls."""
        return sum(decision.blocks_skipped for decision in self.decisions)

    @property
    def modules_run(self) -> int:
        """Modules under a module cache that ran, over all calls."""
        return sum(decision.modules_run for decision in self.decisions)

    @property
    def modules_skipped(self) -> int:
        """Modules under a module cache that did not run, over all calls."""
        return sum(decision.modules_skipped for decision in self.decisions)

    @property
    def tokens_run(self) -> int:
        """Tokens that ran in modules that computed only some, over all calls."""
        return sum(decision.tokens_run for decision in self.decisions)

    @property
    def tokens_skipped(self) -> int:
        """Tokens that did not run in those modules, over all calls."""
        return sum(decision.tokens_skipped for decision in self.decisions)

    @property
    def scores_run(self) -> int:
        """Scores that ran in attention that was offered to a sparse method, over all calls."""
        return sum(decision.scores_run for decision in self.decisions)

    @property
    def scores_skipped(self) -> int:
        """Scores that did not run there, over all calls."""
        return sum(decision.scores_skipped for decision in self.decisions)

    @property
    def parts(self) -> tuple[int, int]:
        """How many parts ran and how many did not: modules if any were counted, else blocks."""
        modules = self.modules_run, self.modules_skipped
        return modules if any(modules) else (self.blocks_run, self.blocks_skipped)

    @property
    def skipped_share(self) -> float:
        """Share of those parts that did not run, 0 to 1."""
        run, skipped = self.parts
        return skipped / (run + skipped) if run + skipped else 0.0

    @property
    def estimated_error(self) -> float | None:
        """Largest relative error where a computed call followed skips, or None where none did."""
        errors = [decision.error for decision in self.decisions if decision.error is not None]
        return max(errors) if errors else None

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        parts = product(("blocks", "modules", "tokens", "scores"), ("run", "skipped"))
        counts = {name: getattr(self, name) for name in map("_".join, parts)}
        return {**asdict(self), "engaged": self.engaged, "reused": self.reused, **counts}

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The report that `to_dict` wrote; derived entries are computed anew."""
        fields = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        decisions = tuple(Decision(**entry) for entry in data.get("decisions", ()))
        names = {name: tuple(data.get(name, ())) for name in ("methods", "warnings")}
        return cls(**{**fields, "decisions": decisions, **names})

    def _rows(self) -> list[tuple[str, str]]:
        actions = Counter(decision.action for decision in self.decisions)
        modules = self.modules_run + self.modules_skipped
        planned = "" if self.num_steps in (None, self.steps) else f" of {self.num_steps}"
        rows = [
            ("model", self.model),
            ("methods", ", ".join(self.methods) or "none"),
            ("steps", f"{self.steps}{planned}, {self.calls} denoiser calls"),
            (
                "calls",
                ", ".join(f"{count} {action}" for action, count in actions.items()) or "none",
            ),
            (
                "modules" if modules else "blocks",
                "{} run, {} skipped ({:.0%})".format(*self.parts, self.skipped_share),
            ),
            ("seconds", f"{self.seconds:.3f}, {self.denoiser_seconds:.3f} of them in the denoiser"),
            ("cached", f"{_mib(self.bytes_held)} on {self.device}"),
        ]
        tokens = self.tokens_run + self.tokens_skipped
        if tokens:
            share = self.tokens_run / tokens
            rows.append(("tokens", f"{share:.1%} run in modules that computed only some"))
        scores = self.scores_run + self.scores_skipped
        if scores:
            share = self.scores_run / scores
            rows.append(("scores", f"{share:.1%} run in attention that was offered"))
        if self.most_on_device is not None and self.most_on_host is not None:
            most = f"{_mib(self.most_on_device)} cached on the device at once"
            rows.append(("memory", f"at most {most}, {_mib(self.most_on_host)} on the host"))
        if self.estimated_error is not None:
            rows.append(
                (
                    "error",
                    f"{self.estimated_error:.4f} relative, where it could be checked (largest)",
                )
            )
        return [*rows, *(("note", warning) for warning in self.warnings)]

    def __str__(self) -> str:
        if not self.calls:
            return "No generation yet: call the pipeline, then print the report again."
        return "\n".join(f"{name:<8} {text}" for name, text in self._rows())

    def _repr_html_(self) -> str:
        if not self.calls:
            return f"<p>{html.escape(str(self))}</p>"
        cells = (
            f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self._rows()
        )
        return f"<table>{''.join(cells)}</table>"


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


class Memory(Protocol):
    """What is told of the memory that cached features took; see `Report`."""

    budget: int | None
    most_on_device: int
    most_on_host: int


class Timeline:
    """Collects what happens during a generation; becomes a `Report` at its end."""

    def __init__(self, model: str, methods: tuple[str, ...], blocks: int) -> None:
        self.decisions: list[Decision] = []
        self.calls = 0
        self.blocks = blocks
        self.bytes_held = 0
        self._memory: dict[str, Any] = {}
        self.warnings: list[str] = []
        self._model = model
        self._methods = methods
        self._started = time.perf_counter()
        self._device = torch.device("cpu")
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._pending: list[tuple[int, str, Tensor]] = []

    def add(self, decision: Decision) -> None:
        """Notes a decision."""
        self.decisions.append(decision)

    def measure_later(self, name: str, value: Tensor) -> None:
        """Sets a number of the newest decision from a device scalar.

        It is read only at the end, so that the loop does not wait for the device.
        """
        self._pending.append((len(self.decisions) - 1, name, value))

    def warn(self, text: str) -> None:
        """Notes something the user should know, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def note_memory(self, memory: Memory, not_kept: Mapping[str, int]) -> None:
        """Notes how much memory cached features took, and which of them did not fit."""
        self._memory = {
            "most_on_device": memory.most_on_device,
            "most_on_host": memory.most_on_host,
            "not_kept": dict(not_kept),
        }
        if not_kept:
            named = [f"{name} ({size} bytes)" for name, size in not_kept.items()]
            more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            self.warn(
                f"the budget of {memory.budget} bytes for cached features had no room for "
                f"{', '.join(named[:_NAMED])}{more}; these were computed at every evaluation "
                "that did not find them"
            )

    @contextmanager
    def denoiser_watch(self, device: torch.device) -> Iterator[None]:
        """Times the inside: with events on CUDA, so that nothing waits, else by the clock."""
        self._device = device
        if device.type == "cuda":
            pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]  # torch leaves the constructor bare
            pair[0].record()
            yield
            pair[1].record()
            self._events.append(pair)
            return
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started

    def finish(self, steps: int, num_steps: int | None) -> Report:
        """The report. Waits for the device, if events were recorded on one."""
        if self._events:
            torch.cuda.synchronize(self._device)
        decisions = self._settled()
        if self._methods and not any(decision.action in SAVING for decision in decisions):
            self.warn(_why_nothing(decisions))
        on_device = sum(first.elapsed_time(second) for first, second in self._events) / 1000
        return Report(
            model=self._model,
            methods=self._methods,
            steps=steps,
            num_steps=num_steps,
            calls=self.calls,
            decisions=decisions,
            seconds=time.perf_counter() - self._started,
            denoiser_seconds=self._seconds + on_device,
            bytes_held=self.bytes_held,
            **self._memory,
            device=device_name(self._device),
            versions=versions(),
            warnings=tuple(self.warnings),
        )

    def _settled(self) -> tuple[Decision, ...]:
        decisions = list(self.decisions)
        for index, name, value in self._pending:
            number = float(value)
            known: dict[str, Any] = {name: number if math.isfinite(number) else None}
            decisions[index] = replace(decisions[index], **known)
        return tuple(decisions)


def _why_nothing(decisions: Sequence[Decision]) -> str:
    """Plain words about a generation in which nothing was reused."""
    said = "nothing was reused, so expect no speed-up: "
    values = [decision.value for decision in decisions if decision.value is not None]
    if values:
        return (
            f"{said}the smallest measured change was {min(values):.3g}; a larger threshold engages"
        )
    reasons = Counter(decision.reason for decision in decisions)
    return said + ", ".join(f"{reason} ({count} calls)" for reason, count in reasons.most_common(3))


def device_name(device: torch.device) -> str:
    """A device as a person would name it, e.g. "cuda:0 (NVIDIA H200)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({platform.machine()})" if device.type == "cpu" else str(device)


@cache
def _version_items() -> tuple[tuple[str, str], ...]:
    names = {
        "accel": "accel-diffusion",
        "torch": "torch",
        "diffusers": "diffusers",
        "transformers": "transformers",
    }
    found = [("python", platform.python_version())]
    for label, distribution in names.items():
        try:
            found.append((label, metadata.version(distribution)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries a measurement depends on, without importing them."""
    return dict(_version_items())
