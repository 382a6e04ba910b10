"""Every backend computes exactly the scores of a plan, and nothing else."""

import dataclasses
import math
import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from accel.errors import AccelUnsupportedError, OptionError
from sparse_attn.backends.backend import Backend
from sparse_attn.backends.choose import Chooser, check_name, load
from sparse_attn.backends.reference import ReferenceBackend, mask_of
from sparse_attn.backends.torch import TorchBackend, rows_of
from sparse_attn.plan.plan import Plan, Tail
from sparse_attn.tiles import TileList

LOG2E = math.log2(math.e)


def random_plan(
    seed: int, heads: int, tokens: int, density: float = 0.4, *, permuted: bool = True
) -> Plan:
    """Returns clusters of random sizes, some empty, of which random pairs see each other."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [random_sizes(generator, heads, tokens) for _ in range(2)]
    keep = torch.rand(heads, 7, 7, generator=generator) < density
    orders = [
        torch.stack([torch.randperm(tokens, generator=generator) for _ in range(heads)])
        for _ in range(2)
    ]
    tiles = TileList.from_blocks(keep, *sizes)
    tiles.check()
    return Plan(tiles, *(orders if permuted else (None, None)))


def random_sizes(generator: torch.Generator, heads: int, tokens: int) -> Tensor:
    """Returns [heads, 7] sizes that add up to the tokens; the third is 0."""
    cuts = torch.randint(0, tokens + 1, (heads, 5), generator=generator).sort(1).values
    edges = torch.cat([cuts.new_zeros(heads, 1), cuts, cuts.new_full((heads, 1), tokens)], 1)
    sizes = edges.diff(dim=1)
    return torch.cat([sizes[:, :2], sizes.new_zeros(heads, 1), sizes[:, 2:]], 1)


def random_tail(seed: int, plan: Plan, head_dim: int, *, variance: bool) -> Tail:
    """Returns five pseudo-keys, one of them empty, for two segments of the queries."""
    generator = torch.Generator().manual_seed(seed)
    heads, tokens = plan.tiles.heads, plan.tiles.queries
    keys, values, spread = torch.randn(3, heads, 5, head_dim, generator=generator)
    bias = torch.tensor([0.0, 1.0, 2.0, -math.inf, 3.0]).expand(heads, 5)
    skipped = torch.rand(heads, 2, 5, generator=generator) < 0.6
    segments = torch.randint(0, 2, (heads, tokens), generator=generator).sort(1).values
    return Tail(keys, values, bias, spread.square() if variance else None, skipped, segments)


def spelt_out(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns output, natural LSE and which scores are seen, query by query, in fp64."""
    batch, heads, queries, _ = q.shape
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    lse = torch.full(q.shape[:-1], -math.inf, dtype=torch.float64)
    asked = torch.zeros(batch * heads, queries, k.shape[2], dtype=torch.bool)
    tiles = plan.tiles
    for row in range(tiles.rows):
        head = int(tiles.head[row])
        for place in range(int(tiles.q_start[row]), int(tiles.q_start[row] + tiles.q_len[row])):
            query = place if plan.q_order is None else int(plan.q_order[head, place])
            for run in range(int(tiles.begin[row]), int(tiles.end[row])):
                first = int(tiles.kv_start[run])
                places = torch.arange(first, first + int(tiles.kv_len[run]))
                keys = places if plan.kv_order is None else plan.kv_order[head, places]
                asked[head, query, keys] = True
    for head in range(batch * heads):
        b, h = divmod(head, heads)
        kv = h // (heads // k.shape[1])
        scores = q[b, h].double() @ k[b, kv].double().T * scale
        scores = scores.masked_fill(~asked[head], -math.inf)
        lse[b, h] = scores.logsumexp(-1)
        out[b, h] = scores.softmax(-1).nan_to_num(nan=0.0) @ v[b, kv].double()
    return out, lse, asked


def inputs(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q [2, 4, 40, 24] and k, v [2, 2, 40, 24], none of them contiguous."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 40, 4, 24, generator=generator).transpose(1, 2)
    k, v = torch.randn(2, 2, 40, 2, 24, generator=generator).transpose(2, 3)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("backend", [ReferenceBackend(), TorchBackend()], ids=lambda b: b.name)
@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_output_and_lse_are_those_of_the_scores_that_are_asked_for(
    backend: Backend, seed: int, permuted: bool
) -> None:
    q, k, v = inputs(seed)
    plan = random_plan(seed, 8, 40, permuted=permuted)
    out, lse = backend.attend(q, k, v, plan, scale=0.3)
    expected, natural, _ = spelt_out(q, k, v, plan, 0.3)
    assert out.dtype == q.dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(lse.double(), natural * LOG2E, atol=3e-6, rtol=1e-5)


@given(st.integers(0, 2**20), st.floats(0.0, 1.0), st.booleans())
@settings(max_examples=25, deadline=None)
def test_backends_agree_on_random_plans_with_tails(
    seed: int, density: float, variance: bool
) -> None:
    q, k, v = (x.double() for x in inputs(seed))
    plan = random_plan(seed, 8, 40, density)
    plan = dataclasses.replace(plan, tail=random_tail(seed, plan, 24, variance=variance))
    expected, sums = ReferenceBackend().attend(q, k, v, plan, scale=0.3)
    out, lse = TorchBackend().attend(q, k, v, plan, scale=0.3)
    # The LSE of either part is fp32 on its way to the merge.
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(lse, sums, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_errs_no_more_than_dense_attention_in_it(dtype: torch.dtype) -> None:
    q, k, v = inputs(3, dtype)
    plan = random_plan(3, 8, 40, 0.6)
    out, lse = TorchBackend().attend(q, k, v, plan, scale=0.3)
    assert out.dtype == dtype
    expected, natural, asked = spelt_out(q, k, v, plan, 0.3)
    # The budget: what plain attention in this precision errs on the same scores.
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    scores = (q @ wide[0].mT * 0.3).view(8, 40, 40).masked_fill(~asked, -math.inf)
    plain = scores.softmax(-1).nan_to_num(nan=0.0).view(2, 4, 40, 40) @ wide[1]
    budget = (plain.double() - expected).abs().max()
    assert (out.double() - expected).abs().max() <= 2 * budget
    finite = natural.isfinite()
    assert torch.equal(lse.isfinite(), finite)
    assert (lse - natural * LOG2E)[finite].abs().max() < 0.05


def test_a_query_that_sees_nothing_gives_zero_and_minus_infinity() -> None:
    q, k, v = inputs(0)
    keep = torch.zeros(8, 2, 2, dtype=torch.bool)
    keep[:, 0, 0] = True
    sizes = torch.tensor([[30, 10]]).expand(8, 2)
    plan = Plan(TileList.from_blocks(keep, sizes, sizes))
    for backend in (ReferenceBackend(), TorchBackend()):
        out, lse = backend.attend(q, k, v, plan, scale=0.3)
        assert torch.equal(out[:, :, 30:], torch.zeros(2, 4, 10, 24))
        assert bool((lse[:, :, 30:] == -math.inf).all())
        assert bool((out[:, :, :30] != 0).all())


def test_a_tail_counts_as_so_many_keys_as_its_cluster_has() -> None:
    # Where all keys of a cluster are equal, their centroid with log2 of their number is exact.
    q, k, v = (x.double() for x in inputs(1))
    k, v = k.clone(), v.clone()
    k[:, :, 10:] = k[:, :, 10:11]
    v[:, :, 10:] = v[:, :, 10:11]
    keep = torch.tensor([[[True, False]]]).expand(8, 1, 2)
    tiles = TileList.from_blocks(
        keep, torch.full((8, 1), 40), torch.tensor([[10, 30]]).expand(8, 2)
    )
    heads = [x[:, :, 10:11].repeat_interleave(2, 1).flatten(0, 1) for x in (k, v)]
    tail = Tail(
        *heads,
        torch.full((8, 1), math.log2(30)),
        None,
        torch.ones(8, 1, 1, dtype=torch.bool),
        torch.zeros(8, 40, dtype=torch.int64),
    )
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    exact = torch.nn.functional.scaled_dot_product_attention(q, *wide, scale=0.3)
    for backend in (ReferenceBackend(), TorchBackend()):
        out, _ = backend.attend(q, k, v, Plan(tiles, tail=tail), scale=0.3)
        torch.testing.assert_close(out, exact, atol=1e-5, rtol=1e-5)


def test_neighbouring_rows_that_see_the_same_become_one() -> None:
    keep = torch.tensor([[[True, False], [True, False], [True, True]]])
    tiles = TileList.from_blocks(keep, torch.tensor([[4, 4, 4]]), torch.tensor([[6, 6]]))
    rows = rows_of(tiles)
    assert [(row.start, row.stop, row.runs) for row in rows] == [
        (0, 8, ((0, 6),)),
        (8, 12, ((0, 12),)),
    ]


def test_the_mask_of_a_list_is_its_blocks_token_by_token() -> None:
    keep = torch.tensor([[[True, False], [False, True]]])
    tiles = TileList.from_blocks(keep, torch.tensor([[1, 2]]), torch.tensor([[2, 1]]))
    assert mask_of(tiles)[0].int().tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_the_cpu_gets_torch_and_any_other_by_name() -> None:
    q, k, v = inputs(0)
    for name, expected in ((None, "torch"), ("reference", "reference"), ("torch", "torch")):
        chosen = Chooser(name).choose(q, k, v)
        assert chosen is not None
        assert chosen.name == expected


def test_a_backend_asked_for_that_cannot_is_an_error_with_its_reason() -> None:
    with pytest.raises(AccelUnsupportedError, match="'xformers' was asked for, but xformers"):
        Chooser("xformers").choose(*inputs(0))


def test_an_unknown_backend_is_refused_with_the_nearest() -> None:
    check_name(object(), None)
    with pytest.raises(OptionError, match="Did you mean 'torch'"):
        check_name(object(), "torhc")


def test_a_failed_launch_falls_back_once_and_is_remembered() -> None:
    q, k, v = inputs(0)
    plan = random_plan(0, 8, 40)
    wrong = dataclasses.replace(plan, q_order=torch.full((8, 40), 99))
    chooser = Chooser("reference")
    assert chooser.attend(q, k, v, wrong, scale=0.3) is None
    assert set(chooser.failed) == {"reference", "torch"}
    assert "reference failed (" in chooser.failed["reference"]
    # Both stay out for the rest of the generation.
    assert chooser.attend(q, k, v, plan, scale=0.3) is None
    chooser = Chooser("reference", failed={"reference": "it failed before"})
    found = chooser.attend(q, k, v, plan, scale=0.3)
    assert found is not None
    assert chooser.refused == ("it failed before",)
    torch.testing.assert_close(found[0], load("torch").attend(q, k, v, plan, scale=0.3)[0])


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "why"),
    [
        ("cpu", torch.float16, 64, "needs a CUDA"),
        ("cuda", torch.float32, 64, "takes float16"),
        ("cuda", torch.float16, 68, "in steps of 8"),
        ("cuda", torch.float16, 264, "up to 256"),
    ],
)
def test_xformers_says_what_it_cannot_take(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, head_dim: int, why: str
) -> None:
    class Claimed:
        """Has the look of a tensor on a device that this machine may lack."""

        def __init__(self) -> None:
            self.device = torch.device(device)
            self.dtype = dtype
            self.shape = (1, 1, 4, head_dim)

    q = Claimed()
    assert load("xformers").refuses(*inputs(0)) is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert why in str(load("xformers").refuses(q, q, q))  # type: ignore[arg-type]


class PackedAttention:
    """Stands in for xformers: what its documentation promises of one packed sequence."""

    padded = False

    def __init__(self) -> None:
        self.attn_bias = self
        self.BlockDiagonalMask = self

    def from_seqlens(self, q_seqlen: list[int], kv_seqlen: list[int]) -> tuple[Tensor, Tensor]:
        numbers = (
            torch.arange(len(part)).repeat_interleave(torch.tensor(part))
            for part in (q_seqlen, kv_seqlen)
        )
        return tuple(numbers)  # type: ignore[return-value]

    def memory_efficient_attention_forward_requires_grad(
        self, q: Tensor, k: Tensor, v: Tensor, *, attn_bias: tuple[Tensor, Tensor], scale: float
    ) -> tuple[Tensor, Tensor]:
        scores = q[0, :, 0] @ k[0, :, 0].T * scale
        scores = scores.masked_fill(attn_bias[0][:, None] != attn_bias[1], -math.inf)
        lse = scores.logsumexp(-1)
        if self.padded:
            lse = lse.repeat(2)
        return (scores.softmax(-1) @ v[0, :, 0])[None, :, None], lse[None, None]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> PackedAttention:
    stand_in = PackedAttention()
    ops = ModuleType("xformers.ops")
    ops.fmha = stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xformers", ModuleType("xformers"))
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    return stand_in


@pytest.mark.parametrize("permuted", [True, False])
def test_xformers_gets_every_row_as_a_sequence(packed: PackedAttention, permuted: bool) -> None:
    q, k, v = inputs(5)
    plan = random_plan(5, 8, 40, permuted=permuted)
    plan = dataclasses.replace(plan, tail=random_tail(5, plan, 24, variance=True))
    expected, sums = ReferenceBackend().attend(q, k, v, plan, scale=0.3)
    out, lse = load("xformers").attend(q, k, v, plan, scale=0.3)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(lse, sums, atol=1e-5, rtol=1e-5)


def test_an_unknown_form_of_lse_is_a_failed_launch(packed: PackedAttention) -> None:
    packed.padded = True
    with pytest.raises(RuntimeError, match=r"returned an LSE of shape \(1, 1, "):
        load("xformers").attend(*inputs(5), random_plan(5, 8, 40), scale=0.3)
