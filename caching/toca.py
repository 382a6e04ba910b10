"""ToCa: attention held, and of MLPs and cross-attention only the tokens that matter computed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from accel.layers import Call
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import Kind, ModelSites, Site
from caching.outputs import Group, OutputCache, OutputRule, parts_of
from caching.predictor import Hold
from caching.token_refresh import TokenRefresher, TokenRule

# The MLPs of text streams.
_TEXT_MLPS = ("ff_context", "txt_mlp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCa(Method):
    """Computes everything at every n-th evaluation; in between, some tokens of some modules.

    Then self-attention and joint attention are held, and of every MLP and cross-attention only the
    tokens with the highest scores are computed, the others' outputs held. A score is a token's
    importance, plus its age, plus a share of itself for the best token of every square cell of the
    picture. The share of tokens that is computed falls from layer to layer, and is larger in MLPs.

    Source: arXiv 2410.05317. The defaults are those of its code for FLUX. That for PixArt takes
    interval 3, interval_weight 0.2, ratio 0.3, layer_weight 0.6 and step_weight 0.9, and that for
    DiT interval_weight 0.4, ratio 0.07, layer_weight 0.8, step_weight -0.4, mlp_factor 2.5, cell 2
    and cell_bonus 0.6. Departures: importance is how much a token's output changed when it was
    last computed (its norm, until that is known) instead of attention received or the entropy of
    cross-attention, so fused attention stays; an interval runs from the last computation, where the
    code asks whether the step is a multiple of a changing number; shares are limited to 0 to 1 and
    reported as they came out; the text's tokens are held, never chosen; blocks whose attention and
    MLP share a projection (FLUX's single-stream ones) are held as a whole; modules that mix tokens
    are held, and said to be; all guidance branches of a step and all copies of a sample in a batch
    choose the same tokens; `max_age`; tail and minimum-step guards.

    Attributes:
        interval: evaluations from one computation of everything to the next, from 1 (always).
        interval_weight: how much longer intervals are at the schedule's begin than on average, and
            shorter at its end, 0 to 0.9.
        ratio: share of the picture's tokens that is computed in between, 0 to 1.
        layer_weight: how much larger it is in the first layer, and smaller in the last, -1 to 1.
        step_weight: the same for the first and the last evaluation, -1 to 1.
        mlp_factor: factor on it in MLPs, 0 or more.
        cross_factor: factor on it in cross-attention, 0 or more.
        age_weight: what an age of `interval` adds to a score, 0 or more.
        max_age: evaluations after which a token goes before all others.
        cell: side of a cell in tokens, from 1.
        cell_bonus: share of its score that a cell's best token gets, 0 or more.
        warmup: first evaluations that always compute everything.
        tail: last evaluations that always do.
        min_steps: schedules of at most this many evaluations do throughout.

    Raises:
        OptionError: for a value outside its range.
    """

    interval: int = 4
    interval_weight: float = 0.0
    ratio: float = 0.1
    layer_weight: float = 0.5
    step_weight: float = 0.0
    mlp_factor: float = 1.6
    cross_factor: float = 0.6
    age_weight: float = 0.25
    max_age: int = 8
    cell: int = 4
    cell_bonus: float = 0.4
    warmup: int = 3
    tail: int = 1
    min_steps: int = 8

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS, Claim.REDUCES_TOKENS})
    source: ClassVar[str] = "arXiv 2410.05317"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("interval", 1, 8, "up"),
        Tunable("ratio", 0.0, 0.5, "down"),
    )

    def __post_init__(self) -> None:
        for name in ("interval", "max_age", "cell"):
            require_number(self, name, getattr(self, name), low=1, whole=True)
        for name in ("warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        for name in ("layer_weight", "step_weight"):
            require_number(self, name, getattr(self, name), low=-1.0, high=1.0)
        for name in ("mlp_factor", "cross_factor", "age_weight", "cell_bonus"):
            require_number(self, name, getattr(self, name), low=0.0)
        require_number(self, "interval_weight", self.interval_weight, low=0.0, high=0.9)
        require_number(self, "ratio", self.ratio, low=0.0, high=1.0)

    def neutral(self) -> Self:
        """The cache that always computes everything."""
        return replace(self, interval=1)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser, of its modules and of blocks without modules.

        Raises:
            AccelUnsupportedError: if the model has no attention modules.
        """
        model.require_attention("ToCa")
        whole, modules = parts_of(model)
        mlps = tuple(site for site in modules if site.kind is Kind.MLP)
        texts = tuple(site for site in mlps if site.path.endswith(_TEXT_MLPS))
        mlps = tuple(site for site in mlps if site not in texts)
        crosses = tuple(site for site in modules if site.kind is Kind.CROSS_ATTENTION)
        refreshed = {*mlps, *crosses}
        others = tuple(site for site in modules if site not in refreshed)
        refresher = TokenRefresher(self._rule(mlps, crosses), model)
        group = partial(Group, interval=self.interval, stretch=self.interval_weight)
        groups = (
            group(name="attention held", sites=others),
            group(name="blocks held", sites=whole, residual=True),
            group(name="MLP tokens", sites=mlps, refresher=refresher),
            group(name="cross-attention tokens", sites=crosses, refresher=refresher),
        )
        rule = OutputRule(
            groups=tuple(group for group in groups if group.sites),
            depth=1,
            predictor=lambda _, __: Hold(),
            warmup=self.warmup,
            tail=self.tail,
            min_steps=self.min_steps,
        )
        if self.interval > 1:
            yield from refresher.bind(model)
        yield from OutputCache(rule).bind(model)

    def _rule(self, mlps: tuple[Site, ...], crosses: tuple[Site, ...]) -> TokenRule:
        shares = _by_layer(mlps, self.ratio * self.mlp_factor, self.layer_weight)
        shares |= _by_layer(crosses, self.ratio * self.cross_factor, self.layer_weight)

        def share(call: Call) -> float:
            past = call.step / call.num_steps if call.num_steps else 0.5
            now = 1 + self.step_weight * (1 - 2 * past)
            return min(1.0, max(0.0, shares[call.site.path] * now))

        return TokenRule(
            share=share,
            interval=self.interval,
            age_weight=self.age_weight,
            max_age=self.max_age,
            cell=self.cell,
            bonus=self.cell_bonus,
        )


def _by_layer(sites: tuple[Site, ...], share: float, weight: float) -> dict[str, float]:
    last = max(1, len(sites) - 1)
    return {
        site.path: share * (1 + weight * (1 - 2 * layer / last)) for layer, site in enumerate(sites)
    }
