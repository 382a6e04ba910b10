"""PAB, Pyramid Attention Broadcast: attention outputs held, the longer the less they change."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from accel.errors import AccelUnsupportedError, OptionError
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import ModelSites, Site
from accel.work import Run
from caching.outputs import Group, OutputCache, OutputRule
from caching.predictor import Hold
from caching.prices import outputs_run


@dataclass(frozen=True, slots=True, kw_only=True)
class PAB(Method):
    """Computes attention at every n-th evaluation inside a window of the schedule, else holds it.

    Spatial, temporal and cross-attention have an interval each; cross-attention changes least.

    Source: arXiv 2408.12588; the defaults are its 2-4-6 pyramid and the window 100 to 800 of 1000
    timesteps. Departures: the window is a part of the trained schedule, so it is the same place for
    flow models and for runs that start late; outputs are kept for every guidance branch on its own;
    an interval runs from the last computation, not from the first step; warm-up, tail and
    minimum-step guards.

    Attributes:
        spatial: evaluations from one computation of self-attention and joint attention to the
            next, from 1 (always), or None for always.
        temporal: the same for attention over frames alone.
        cross: the same for cross-attention.
        mlp: the same for MLPs; published for few timesteps of few blocks, and off by default.
        mlp_blocks: in how many of the first blocks MLPs are held, or None for all.
        window: shares (low, high) of the trained schedule between which outputs may be held.
        warmup: first evaluations that always compute.
        tail: last evaluations that always compute.
        min_steps: schedules of at most this many evaluations compute throughout.

    Raises:
        OptionError: for a value outside its range.
    """

    spatial: int | None = 2
    temporal: int | None = 4
    cross: int | None = 6
    mlp: int | None = None
    mlp_blocks: int | None = 5
    window: tuple[float, float] = (0.1, 0.8)
    warmup: int = 1
    tail: int = 1
    min_steps: int = 8

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS})
    source: ClassVar[str] = "arXiv 2408.12588"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("spatial", 1, 6, "up"),
        Tunable("temporal", 1, 8, "up"),
        Tunable("cross", 1, 12, "up"),
    )

    def __post_init__(self) -> None:
        for name in ("spatial", "temporal", "cross", "mlp", "mlp_blocks"):
            if getattr(self, name) is not None:
                require_number(self, name, getattr(self, name), low=1, whole=True)
        for name in ("warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        if not isinstance(self.window, tuple) or len(self.window) != 2:  # noqa: PLR2004 -- low, high
            raise OptionError(f"PAB: window is {self.window!r}; expected two shares (low, high).")
        low, high = self.window
        require_number(self, "window", low, low=0.0, high=1.0)
        require_number(self, "window", high, low=low, high=1.0)

    def neutral(self) -> Self:
        """The broadcast that never holds."""
        return replace(self, spatial=1, temporal=1, cross=1, mlp=None)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser and of the modules.

        Raises:
            AccelUnsupportedError: if the model has no attention of a kind that has an interval.
        """
        yield from OutputCache(self._rule(model)).bind(model)

    def price(self, model: ModelSites, run: Run) -> Run:
        """The modules run at the evaluations at which they are computed."""
        return outputs_run(run, self._rule(model))

    def _rule(self, model: ModelSites) -> OutputRule:
        model.require_attention("PAB")
        kinds = (
            ("spatial attention held", model.attention, self.spatial),
            ("temporal attention held", model.temporal, self.temporal),
            ("cross-attention held", model.cross, self.cross),
            ("MLP held", _of_first_blocks(model.mlp, self.mlp_blocks), self.mlp),
        )
        groups = tuple(
            Group(name=name, sites=sites, interval=interval, window=self.window)
            for name, sites, interval in kinds
            if interval is not None and sites
        )
        if not groups:
            raise AccelUnsupportedError(
                f"{self} holds nothing that {model.name} has: it has {len(model.attention)} "
                f"spatial, {len(model.temporal)} temporal and {len(model.cross)} cross-attention "
                f"modules and {len(model.mlp)} MLPs. Give one of them an interval."
            )
        return OutputRule(
            groups=groups,
            depth=1,
            predictor=lambda _, __: Hold(),
            warmup=self.warmup,
            tail=self.tail,
            min_steps=self.min_steps,
        )


def _of_first_blocks(mlps: tuple[Site, ...], blocks: int | None) -> tuple[Site, ...]:
    parents = list(dict.fromkeys(site.path.rpartition(".")[0] for site in mlps))[:blocks]
    return tuple(site for site in mlps if site.path.rpartition(".")[0] in parents)
