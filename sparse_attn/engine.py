"""The hooks of a sparse method: what is offered to it, computed by a backend, and reported."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accel.attention import Attention, answered, pictured
from accel.layers import Call
from accel.method import Binding
from accel.sites import ModelSites
from sparse_attn.backends.choose import Chooser
from sparse_attn.plan.cost import CPU, GPU, predicted_gain
from sparse_attn.plan.plan import Plan
from sparse_attn.problem import Memory, Problem
from sparse_attn.sparse_method import SparseMethod


@dataclass(slots=True)
class _Tally:
    """What one branch's newest denoiser call did.

    Attributes:
        sparse: modules of which some attention was sparse.
        dense: modules by the reason for which their attention, or some of it, was not.
        scores: of all attention that was offered.
        run: how many of them were computed, in parts.
        errors: sampled ones.
    """

    sparse: int = 0
    dense: Counter[str] = field(default_factory=Counter)
    scores: int = 0
    run: list[Tensor] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, offer: "_Offer") -> None:
        """Counts what one module did."""
        self.sparse += offer.sparse > 0
        self.dense.update(set(offer.refused))
        self.scores += offer.scores
        self.run.extend(offer.run)
        self.errors.extend(offer.errors)

    def reset(self) -> None:
        """Forgets the call before."""
        self.sparse = self.scores = 0
        self.dense.clear()
        self.run.clear()
        self.errors.clear()


class Engine:
    """Offers a denoiser's self-attention to one method.

    Args:
        method: what answers.
        layers: attention modules that the denoiser has.
    """

    def __init__(self, method: SparseMethod, layers: int) -> None:
        self.method = method
        self._dense_layers = int(method.dense_layers * layers)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser and of its attention modules."""
        yield Binding(model.denoiser, self._denoise)
        for layer, site in enumerate(model.attention):
            yield Binding(site, partial(self._attend, layer=layer))

    def _denoise(self, call: Call) -> Any:
        tally = call.shared(self, _Tally)
        tally.reset()
        output = pictured(call)
        self._report(call, tally)
        return output

    def _attend(self, call: Call, *, layer: int) -> Any:
        tally = call.shared(self, _Tally)
        reason = self._stays_dense(call, layer)
        if reason is not None:
            tally.dense[reason] += 1
            return call.proceed()
        key = (id(self), "", "every branch")
        chooser = call.generation.state(key, partial(Chooser, self.method.backend))
        offer = _Offer(self.method, call, layer, chooser, call.local(self, _Memories))
        output = answered(call, offer.answer, refused=offer.refused.append)
        tally.add(offer)
        return output

    def _stays_dense(self, call: Call, layer: int) -> str | None:
        if self.method.computes_all:
            return "everything is computed"
        if call.step < self.method.dense_evaluations(call.num_steps):
            return "dense steps"
        return "dense layers" if layer < self._dense_layers else None

    def _report(self, call: Call, tally: _Tally) -> None:
        # Where a step cache answered for every module there is nothing to say.
        if not tally.sparse and not tally.dense:
            return
        run = int(torch.stack([count.cpu() for count in tally.run]).sum()) if tally.run else 0
        dense = ", ".join(f"{reason} ({count} modules)" for reason, count in tally.dense.items())
        if not tally.sparse:
            guarded = {"dense steps", "dense layers"} & tally.dense.keys()
            call.decide("forced" if guarded else "computed", dense, scores_run=run)
            return
        density = f"density {run / tally.scores:.3f} in {tally.sparse} modules"
        call.decide(
            "sparse",
            f"{density}; dense: {dense}" if dense else density,
            error=max(tally.errors, default=None),
            scores_run=run,
            # A method may compute more than was asked for, to learn from it.
            scores_skipped=max(0, tally.scores - run),
        )


class _Offer:
    """What one call of one attention module asks for; there may be several in it."""

    def __init__(
        self,
        method: SparseMethod,
        call: Call,
        layer: int,
        chooser: Chooser,
        memories: "_Memories",
    ) -> None:
        self.refused: list[str] = []
        self.sparse = 0
        self.scores = 0
        self.run: list[Tensor] = []
        self.errors: list[float] = []
        self._method = method
        self._call = call
        self._layer = layer
        self._chooser = chooser
        self._memories = memories

    def answer(self, attention: Attention) -> Tensor | None:
        """The attention's output, or None for what the model would have had."""
        scores = attention.query.shape[:2].numel() * attention.query.shape[2] ** 2
        self.scores += scores
        found = self._problem(attention)
        if isinstance(found, str):
            self.refused.append(found)
            self.run.append(torch.tensor(scores))
            return None
        computed: list[Tensor] = []
        try:
            out = self._method.answer(found, partial(self._compute, attention, computed))
        except _NoBackendError:
            self.refused.append("no backend is left")
            out = None
        if out is None:
            computed = [torch.tensor(scores)]
        self.sparse += out is not None
        self.run.extend(computed)
        error = found.memory.numbers.pop("error", None)
        if error is not None:
            self.errors.append(error)
        return out

    def _compute(
        self, attention: Attention, computed: list[Tensor], plan: Plan
    ) -> tuple[Tensor, Tensor]:
        q, k, v = attention.query, attention.key, attention.value
        result = self._chooser.attend(q, k, v, plan, scale=attention.scale)
        for failure in self._chooser.failed.values():
            self._call.generation.timeline.warn(f"{failure}; it was not tried again")
        if result is None:
            raise _NoBackendError
        computed.append((plan.tiles.seen * plan.tiles.q_len).sum())
        return result

    def _problem(self, attention: Attention) -> Problem | str:
        """What is asked of the method, or why it is not."""
        if attention.place is None:
            return attention.unplaced or "which tokens are the picture's is not known"
        if self._chooser.choose(attention.query, attention.key, attention.value) is None:
            return "; ".join(self._chooser.refused)
        small = too_small(self._method, attention)
        if small is not None:
            return small
        memory = self._memories.of(attention)
        problem = Problem(self._call, attention, attention.place, memory, self._layer)
        return self._method.unfit(problem) or problem


def too_small(method: SparseMethod, attention: Attention) -> str | None:
    """Why a sequence of so few tokens stays dense, or None if it need not."""
    batch, heads, tokens, head_dim = attention.query.shape
    if method.min_tokens is not None:
        few = tokens < method.min_tokens
        return f"{tokens} tokens are fewer than {method.min_tokens}" if few else None
    gain = predicted_gain(
        CPU if attention.query.device.type == "cpu" else GPU,
        heads=batch * heads,
        tokens=tokens,
        head_dim=head_dim,
        density=method.expected_density,
        clusters=method.clusters(tokens),
    )
    return f"no gain predicted at {tokens} tokens ({gain:.2f}x)" if gain < 1 else None


class _NoBackendError(Exception):
    """Every backend that could have computed a plan has failed."""


@dataclass(slots=True)
class _Memories:
    """What is kept of every attention of one module; Mochi's asks for one a sample."""

    by_ordinal: dict[int, Memory] = field(default_factory=dict)

    def of(self, attention: Attention) -> Memory:
        """What is kept of this one, nothing if it has another shape than before."""
        form = (
            attention.query.shape,
            attention.key.shape,
            attention.place,
            attention.query.dtype,
            attention.query.device,
        )
        memory = self.by_ordinal.setdefault(attention.ordinal, Memory())
        if memory.form != form:
            memory = self.by_ordinal[attention.ordinal] = Memory(form)
        return memory

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, for the report."""
        return sum(memory.nbytes for memory in self.by_ordinal.values())
