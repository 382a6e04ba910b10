"""One attention of a generation that is stepped by hand, and inputs whose structure is known."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accel.attention import Attention
from accel.clock import Clock
from accel.layers import Call, Layer
from accel.picture_tokens import Place
from accel.report import Timeline
from accel.session import Generation, Session
from accel.sites import Kind, Site
from sparse_attn.backends.reference import ReferenceBackend, mask_of
from sparse_attn.plan.plan import Plan
from sparse_attn.problem import Memory, Problem
from sparse_attn.sparse_method import SparseMethod


class Attending:
    """What a method answers to one attention, evaluation by evaluation."""

    def __init__(
        self,
        method: SparseMethod,
        *qkv: Tensor,
        place: Place | None = None,
        valid: Tensor | None = None,
        layer: int = 0,
    ) -> None:
        self.method = method
        self.memory = Memory()
        self.plans: list[Plan] = []
        self.clock = Clock(num_steps=50)
        self.layer = layer
        session = Session("Toy", None)  # type: ignore[arg-type]  # nothing asks for its owner
        self._layer = Layer(Site(Kind.ATTENTION, "attn", nn.Identity()), session)
        self._generation = Generation(self.clock, Timeline("Toy", (), 0))
        self.set(*qkv, place=place, valid=valid)

    def set(self, *qkv: Tensor, place: Place | None = None, valid: Tensor | None = None) -> None:
        """Changes what is asked for."""
        q, k, v = qkv
        self.place = place or Place(0, q.shape[2], None)
        scale = 1 / math.sqrt(q.shape[-1])
        self.attention = Attention(q, k, v, None, scale, 0, self.place, valid)

    @property
    def problem(self) -> Problem:
        """What is asked for now."""
        call = Call(self._layer, 0, self._generation, (), {})
        return Problem(call, self.attention, self.place, self.memory, self.layer)

    def run(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """Output and LSE of a plan, which is checked and noted."""
        plan.tiles.check()
        self.plans.append(plan)
        attention = self.attention
        q, k, v = attention.query, attention.key, attention.value
        return ReferenceBackend().attend(q, k, v, plan, scale=attention.scale)

    def __call__(self) -> Tensor:
        """The answer at this evaluation; then the next one comes."""
        out = self.method.answer(self.problem, self.run)
        assert out is not None
        self.clock.advance()
        return out

    def exact(self) -> Tensor:
        """What all scores give, in fp64."""
        attention = self.attention
        q, k, v = (x.double() for x in (attention.query, attention.key, attention.value))
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        mask = None if attention.valid is None else attention.valid[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def error(self, out: Tensor) -> float:
        """Relative L2 error of an output."""
        exact = self.exact()
        return float((out.double() - exact).norm() / exact.norm())

    @property
    def density(self) -> float:
        """Share of the scores that the newest plan computes."""
        return self.plans[-1].tiles.density()

    def seen(self) -> Tensor:
        """Which scores the newest plan computes, [G, N, N] in the original order."""
        plan = self.plans[-1]
        mask = mask_of(plan.tiles)
        seen = torch.zeros_like(mask)
        places = torch.arange(mask.shape[1]).expand(len(mask), -1)
        for head in range(len(mask)):
            q = (places if plan.q_order is None else plan.q_order)[head]
            k = (places if plan.kv_order is None else plan.kv_order)[head]
            seen[head, q[:, None], k] = mask[head]
        return seen


def clustered(
    tokens: int = 256,
    *,
    heads: int = 2,
    kv_heads: int | None = None,
    centres: int = 8,
    noise: float = 0.3,
    gain: float = 2.5,
    seed: int = 0,
    batch: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k, v [B, H, N, 16] in which tokens of one kind look at each other.

    Kinds are scattered over the sequence: nothing but the values of q and k tells them apart.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = kinds_of(tokens, centres, seed)
    kv_heads = heads if kv_heads is None else kv_heads
    directions = torch.randn(kv_heads, centres, 16, generator=generator)

    def around(means: Tensor, spread: float) -> Tensor:
        rows = means[:, kinds].expand(batch, *means[:, kinds].shape)
        return rows + spread * torch.randn(rows.shape, generator=generator)

    shared = directions.repeat_interleave(heads // kv_heads, 0)
    values = torch.randn(kv_heads, centres, 16, generator=generator)
    return around(shared * gain, noise), around(directions, noise), around(values, 0.5)


def kinds_of(tokens: int, centres: int = 8, seed: int = 0) -> Tensor:
    """Returns the kind of every token of `clustered`."""
    generator = torch.Generator().manual_seed(seed + 1000)
    return torch.randint(0, centres, (tokens,), generator=generator)
