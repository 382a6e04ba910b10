"""Between computations of a module: some tokens of its output computed anew, the others held.

What a token's importance is taken from: how much its output changed, an evaluation, when it was
last computed, and the norm of the output until that is known. Both come with the outputs, so
attention may stay fused; published scores need its maps.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.picture_tokens import Picture, Place, Text, picture_of
from accel.pointwise import mixing
from accel.sites import ModelSites, Site, Streams, alike
from accel.specs import TEMPORAL_NAMES
from caching.outputs import Refreshed
from caching.predictor import Hold
from caching.slots import Kept, Slot
from caching.token_scores import choose, pooled, put, scored, spread, take, with_cell_bonus

_EVERY_BRANCH = "every branch"
_TOKENS_DIM = 3
# Blocks whose MLP is handed the text's tokens and behind them the picture's, by class name.
_TEXT_FIRST = frozenset(
    {
        "AuraFlowSingleTransformerBlock",
        "CogVideoXBlock",
        "CogView3PlusTransformerBlock",
        "ConsisIDBlock",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRule:
    """How tokens are chosen.

    Attributes:
        share: of a module's tokens to compute at an evaluation, 0 to 1.
        interval, age_weight: see `scored`.
        max_age: see `choose`.
        cell, bonus: see `with_cell_bonus`.
    """

    share: Callable[[Call], float]
    interval: int
    age_weight: float
    max_age: int
    cell: int
    bonus: float


@dataclass(slots=True)
class _Memory:
    """What is known of the tokens of a module's call: see the module's docstring.

    Attributes:
        tokens: importance [B, N] and the evaluation at which each was computed [B, N]; None where
            there is no room for them.
        changed: whether the importance is one of changes.
        mixing: why tokens of it cannot be computed alone, or None.
    """

    tokens: Streams | None
    changed: bool
    mixing: str | None

    @property
    def importance(self) -> Tensor:
        """[B, N]."""
        assert self.tokens is not None, "those without tokens are forgotten"
        return self.tokens.hidden

    @property
    def computed(self) -> Tensor:
        """[B, N]."""
        assert self.tokens is not None, "those without tokens are forgotten"
        assert self.tokens.context is not None, "both are kept together"
        return self.tokens.context

    def keep(self, call: Call, number: int, importance: Tensor, computed: Tensor) -> None:
        """Takes these up in place of the former, if there is room for them."""
        self.tokens = None
        tokens = Streams(importance, computed)
        self.tokens = call.keep(tokens, f"tokens {number}", stays=True)


@dataclass(slots=True)
class _Memories:
    """Those of all calls that a module gets in a denoiser call, by number."""

    calls: dict[int, _Memory] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        kept = (memory.tokens for memory in self.calls.values())
        return sum(tokens.nbytes for tokens in kept if tokens is not None)


@dataclass(slots=True)
class _Scene:
    """The denoiser call that is going on.

    Attributes:
        rows: of its batch.
        copies: how often every sample is in it.
        pictures: by the shape that the denoiser is handed.
    """

    call: Call | None = None
    rows: int = 1
    copies: int = 1
    pictures: dict[torch.Size | None, Picture] = field(default_factory=dict)


@dataclass(slots=True)
class _Choices:
    """The tokens chosen for a module's calls by the first branch of a step, by number."""

    step: int = -1
    indices: dict[int, tuple[Place, Streams]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        return sum(indices.nbytes for _, indices in self.indices.values())


class TokenRefresher:
    """Refreshes tokens of modules of one denoiser."""

    def __init__(self, rule: TokenRule, model: ModelSites) -> None:
        self.rule = rule
        self._config = getattr(model.module, "config", None)
        self._unet = bool(model.down)
        self._text_first = {
            site.path for site in model.blocks if type(site.module).__name__ in _TEXT_FIRST
        }

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hook of the denoiser, which must come before the module cache's."""
        yield Binding(model.denoiser, self._denoise)

    def _denoise(self, call: Call) -> Any:
        scene = self._scene(call)
        hidden, guided = call.hidden, call.generation.clock.prediction
        scene.call = call
        scene.rows = len(hidden) if isinstance(hidden, Tensor) and hidden.dim() else 1
        # Where the scheduler was handed fewer predictions, a batch holds each sample several times:
        # guidance. Before the first step, nothing is refreshed.
        once = len(guided) if isinstance(guided, Tensor) and guided.dim() else scene.rows
        scene.copies = scene.rows // once if once and scene.rows % once == 0 else 1
        try:
            return call.proceed()
        finally:
            scene.call = None

    def computed(self, call: Call, slot: Slot, output: Any) -> None:
        """Takes up the importance of every token of a whole output."""
        calls = call.local(self, _Memories).calls
        old = calls.pop(slot.number, None)
        hidden = call.hidden
        if not isinstance(hidden, Tensor) or not _row_by_row(hidden, output):
            call.generation.timeline.warn(
                f"{_name(call.site)} is held whole between computations: it does not return a "
                "token for each of its own"
            )
            return
        step = torch.full(output.shape[:2], float(call.step), device=output.device)
        before = _value(slot.kept[-1]) if slot.kept else None
        if old is not None and before is not None and alike(before, output):
            size = _size(output.detach() - before) / _age(old.computed, call.step)
            memory = _Memory(None, changed=True, mixing=old.mixing)
            old.tokens = None
        else:
            size, reason = _size(output.detach()), mixing(call.site, call.args, call.kwargs)
            memory = _Memory(None, changed=False, mixing=reason)
        memory.keep(call, slot.number, size, step)
        if memory.tokens is not None:
            calls[slot.number] = memory

    def answer(self, call: Call, slot: Slot, kept: Kept) -> Refreshed:
        """The kept output with the tokens that matter most computed anew."""
        calls = call.local(self, _Memories).calls
        memory, held = calls.get(slot.number), _value(kept)
        place = None
        if memory is not None and held is not None:
            place = self._place(call, calls, memory)
        if memory is None or held is None or place is None:
            answer = slot.answer([kept], Hold(), kept.sigma)
            return Refreshed(answer, 0, 0)
        count = min(place.length, int(self.rule.share(call) * place.length))
        if not count:
            return Refreshed(slot.answer([kept], Hold(), kept.sigma), 0, place.length)
        if count == held.shape[1]:
            every = torch.arange(count, device=held.device).expand(len(held), -1)
            output = self._renew(call, slot.number, memory, held, every, call.proceed())
        else:
            chosen = self._chosen(call, slot.number, memory, place, count)
            indices = spread(chosen, len(held)) + place.start
            call.change(call.site.io.hidden, take(call.hidden, indices))
            # The number of tokens differs from layer to layer: each would be another graph.
            values = call.proceed_with(())
            output = self._renew(call, slot.number, memory, held, indices, values)
        if memory.tokens is None:
            del calls[slot.number]
        slot.renew(kept, output, call.keep)
        return Refreshed(output, count, place.length)

    def _renew(
        self,
        call: Call,
        number: int,
        memory: _Memory,
        held: Tensor,
        indices: Tensor,
        values: Tensor,
    ) -> Tensor:
        """The whole output; takes up the importance of the tokens that were computed."""
        importance, computed = memory.importance, memory.computed
        if memory.changed:
            change = _size(values.detach() - take(held, indices))
            size = change / _age(computed.gather(1, indices), call.step)
            importance = importance.scatter(1, indices, size)
        computed = computed.scatter(1, indices, float(call.step))
        memory.keep(call, number, importance, computed)
        return values if indices.shape[1] == held.shape[1] else put(held, indices, values)

    def _chosen(self, call: Call, number: int, memory: _Memory, place: Place, count: int) -> Tensor:
        """Indices [R, K] among the picture's tokens: one set for all branches and copies."""
        rows = len(memory.importance)
        copies = self._scene(call).copies if rows % self._scene(call).copies == 0 else 1
        choices = call.generation.state((id(self), call.site.path, _EVERY_BRANCH), _Choices)
        if choices.step != call.step:
            choices.step = call.step
            choices.indices.clear()
        known, indices = choices.indices.get(number, (None, None))
        shape = (rows // copies, count)
        if indices is not None and known == place and indices.shape == shape:
            return indices.hidden.to(memory.importance.device)
        rule = self.rule
        end = place.start + place.length
        importance = pooled(memory.importance[:, place.start : end], copies)
        ages = pooled(call.step - memory.computed[:, place.start : end], copies)
        scores = scored(importance, ages, interval=rule.interval, age_weight=rule.age_weight)
        if place.lattice is not None:
            scores = with_cell_bonus(scores, place.lattice, cell=rule.cell, bonus=rule.bonus)
        chosen = choose(scores, count, ages=ages, max_age=rule.max_age)
        # Without room for it, every branch chooses for itself.
        kept = call.keep(Streams(chosen), f"choice {number}", stays=True)
        if kept is not None:
            choices.indices[number] = (place, kept)
        return chosen

    def _place(self, call: Call, calls: Mapping[int, _Memory], memory: _Memory) -> Place | None:
        """Where the picture's tokens are; None, after saying why, if the output is held whole."""
        timeline = call.generation.timeline
        said = f"{_name(call.site)} is held whole between computations: "
        if memory.mixing is not None:
            timeline.warn(said + memory.mixing)
            return None
        rows, tokens = memory.importance.shape
        sizes = [other.importance.shape[1] for other in calls.values()]
        # A module that serves both streams gets two calls. Of one size, they cannot be told apart.
        place = self._in_picture(call, rows, tokens) if sizes.count(tokens) == 1 else None
        if place is None:
            served = (self._in_picture(call, rows, size) for size in sizes if size != tokens)
            if not any(served):
                timeline.warn(said + "which of its tokens are the picture's is not known")
        elif place.lattice is None and self.rule.bonus:
            timeline.warn("how the tokens lie is not known, so none gets a bonus for its cell")
        return place

    def _in_picture(self, call: Call, rows: int, tokens: int) -> Place | None:
        if any(part in TEMPORAL_NAMES for part in call.site.path.split(".")):
            return None
        scene = self._scene(call)
        assert scene.call is not None, "a module of the denoiser is called in the denoiser's call"
        hidden = scene.call.hidden
        shape = hidden.shape if isinstance(hidden, Tensor) else None
        if shape not in scene.pictures:
            scene.pictures[shape] = picture_of(scene.call, self._config, unet=self._unet)
        block = call.site.path.rpartition(".")[0]
        text = Text.FIRST if block in self._text_first else None
        return scene.pictures[shape].among(tokens, rows // scene.rows, text=text)

    def _scene(self, call: Call) -> _Scene:
        return call.generation.state((id(self), "", _EVERY_BRANCH), _Scene)


def _row_by_row(hidden: Tensor, output: Any) -> bool:
    """Whether an output has a token for every one that went in."""
    if not isinstance(output, Tensor) or hidden.dim() != _TOKENS_DIM:
        return False
    return output.dim() == _TOKENS_DIM and output.shape[:2] == hidden.shape[:2]


def _value(kept: Kept) -> Tensor | None:
    """A kept output that is one tensor."""
    part = kept.parts[0] if len(kept.parts) == 1 else None
    return None if part is None else part.streams.hidden


def _size(tokens: Tensor) -> Tensor:
    """The norm of every token, [B, N]; 0 where it is not finite, so that others can be ranked."""
    size: Tensor = torch.linalg.vector_norm(tokens, dim=-1, dtype=torch.float32)
    return size.nan_to_num(nan=0.0, posinf=0.0)


def _age(computed: Tensor, step: int) -> Tensor:
    return (step - computed).clamp_min(1)


def _name(site: Site) -> str:
    # The same module of all blocks, so that it is said once.
    return f"{site.path.rpartition('.')[2]} ({type(site.module).__name__})"
