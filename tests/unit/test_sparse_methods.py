"""What is special about each of the methods that decide over blocks, tokens and time."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accel.errors import OptionError
from accel.picture_tokens import Place
from sparse_attn.blocks import pool
from sparse_attn.jenga import Jenga
from sparse_attn.plan.curve import frames_last_ranks, hilbert_ranks, neighbour_blocks
from sparse_attn.plan.segments import Segments
from sparse_attn.radial import Radial
from sparse_attn.rettention import Rettention
from sparse_attn.sparge_attn import SpargeAttn
from sparse_attn.sparse_method import SparseMethod
from sparse_attn.svg1 import SVG1
from sparse_attn.svg2 import SVG2
from sparse_attn.svg_ear import SVGEAR
from sparse_attn.token_sparse import TokenSparse
from sparse_attn.twilight import Twilight
from tests.unit.sparse_problems import Attending, clustered

LATTICE = (4, 8, 8)
PLACE = Place(6, 256, LATTICE)
TOKENS = 268

ENGAGED: dict[str, SparseMethod] = {
    "SVG2": SVG2(q_clusters=8, k_clusters=12, top_p=0.5),
    "Twilight": Twilight(q_clusters=8, k_clusters=12, top_p=0.7, token_p=0.6),
    "SVG1": SVG1(block=16),
    "Jenga": Jenga(block=16),
    "SpargeAttn": SpargeAttn(block=16, topk=0.3, similarity=-1.0),
    "Radial": Radial(block=16, decay=0.3),
}

EVERY: dict[str, SparseMethod] = {
    **ENGAGED,
    "SVGEAR": SVGEAR(q_clusters=8, k_clusters=12, density=0.3),
    "Rettention": Rettention(block=16),
    "TokenSparse": TokenSparse(tau=0.3),
    "error": SVG2(q_clusters=8, k_clusters=12, error=0.1),
}


def smooth(seed: int = 0, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k, v [1, 2, tokens, 16] that change slowly along the raster."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(3, 1, 2, tokens, 16, generator=generator)
    walk = steps.cumsum(3) / 3
    return tuple(walk - walk.mean(3, keepdim=True))  # type: ignore[return-value]


@pytest.mark.parametrize("name", sorted(ENGAGED))
def test_text_is_always_seen_and_padding_never(name: str) -> None:
    valid = torch.ones(2, TOKENS, dtype=torch.bool)
    valid[0, 264:] = False
    q, k, v = (x.expand(2, -1, -1, -1) for x in smooth())
    attending = Attending(ENGAGED[name], q, k, v, place=PLACE, valid=valid)
    out = attending()
    seen = attending.seen()
    real = valid.repeat_interleave(2, 0)
    text = [*range(6), *range(262, 268)]
    assert not bool(seen[~real[:, None].expand_as(seen)].any())
    assert torch.equal(seen[:, text], real[:, None].expand(-1, len(text), -1))
    assert torch.equal(seen[:, :, text], real[:, None, text].expand(-1, TOKENS, -1))
    exact = attending.exact()[:, :, text]
    torch.testing.assert_close(out[:, :, text].double(), exact, atol=1e-4, rtol=1e-4)
    assert 0.05 < attending.density < 0.9


@pytest.mark.parametrize("name", sorted(ENGAGED))
def test_heads_that_share_keys_get_their_own_answers(name: str) -> None:
    q, k, v = clustered(256, heads=4, kv_heads=2)
    method = ENGAGED[name]
    grouped = Attending(method, q, k, v, place=Place(0, 256, LATTICE))
    single = Attending(
        method, q, *(x.repeat_interleave(2, 1) for x in (k, v)), place=Place(0, 256, LATTICE)
    )
    out, other = grouped(), single()
    if isinstance(method, SVG2 | Twilight):
        # Each head of its own draws its first centroids anew.
        assert grouped.error(out) < 1.3 * single.error(other) + 0.05
    else:
        torch.testing.assert_close(out, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_dtype_gives_the_error_that_fp32_does(name: str, dtype: torch.dtype) -> None:
    method = EVERY[name]
    wide = [x.to(dtype).float() for x in clustered(256)]
    place = Place(4, 248, (4, 2, 31))
    errors = []
    for inputs in (wide, [x.to(dtype) for x in wide]):
        attending = Attending(method, *inputs, place=place)
        for _ in range(2):
            out = attending()
        assert out.dtype == inputs[0].dtype
        assert bool(out.isfinite().all())
        errors.append(attending.error(out))
    # Rounding moves single tokens and blocks to the other side of a threshold.
    assert errors[1] < 1.2 * errors[0] + 0.02


def test_svg1_finds_out_which_heads_look_along_time() -> None:
    # Head 0 has what is near in the raster alike, head 1 what is near where time comes first.
    angles = torch.arange(256.0)[:, None] / torch.tensor([4, 8, 16, 32, 64, 128, 256, 512])
    near = 3 * torch.cat([angles.cos(), angles.sin()], 1)
    order = torch.from_numpy(frames_last_ranks(LATTICE))
    q = k = torch.stack([near, near[order]])[None]
    v = smooth(tokens=256)[2]
    attending = Attending(SVG1(density=0.3, block=16), q, k, v, place=Place(0, 256, LATTICE))
    attending()
    spatial, temporal = attending.plans[0].q_order  # type: ignore[misc]
    assert torch.equal(spatial, torch.arange(256))
    # Blocks of the other order hold all four frames of four positions.
    first = np.stack(np.unravel_index(temporal[:16].numpy(), LATTICE))
    assert {tuple(cell[1:]) for cell in first.T} == {(0, 0), (0, 1), (0, 2), (0, 3)}


def test_svg1_s_band_has_its_density() -> None:
    attending = Attending(
        SVG1(density=0.4, block=8), *smooth(tokens=256), place=Place(0, 256, LATTICE)
    )
    attending()
    assert attending.density == pytest.approx(0.4, abs=0.03)


def test_jenga_sees_top_blocks_and_neighbours() -> None:
    q, k, v = smooth(tokens=256)
    attending = Attending(
        Jenga(block=16, drop_rate=0.9, top_p=1e-6), q, k, v, place=Place(0, 256, LATTICE)
    )
    attending()
    ranks = torch.from_numpy(hilbert_ranks(LATTICE))
    order = ranks.argsort()
    blocks = attending.seen()[:, order][:, :, order].view(2, 16, 16, 16, 16)
    pattern = blocks.all(4).all(2)
    assert torch.equal(pattern, blocks.any(4).any(2))
    near = torch.from_numpy(neighbour_blocks(LATTICE, 16))
    assert bool(pattern[:, near].all())
    # Beside neighbours each row has the one block that a tenth of sixteen leaves, the best.
    means = [x.view(2, 256, 16)[:, order].view(2, 16, 16, 16).mean(2) for x in (q, k)]
    best = (means[0] @ means[1].mT).argmax(-1, keepdim=True)
    expected = near.expand(2, -1, -1).scatter(2, best, value=True)
    assert torch.equal(pattern, expected)


def test_a_block_that_is_not_alike_is_seen_by_all_and_sees_all() -> None:
    q, k, v = smooth(tokens=256)
    # Rows of one direction each, but block 3 of the queries and block 5 of the keys are mixed.
    q, k = (
        x.view(1, 2, 16, 16, 16).mean(3, keepdim=True).expand(-1, -1, -1, 16, -1) for x in (q, k)
    )
    q, k = q.clone(), k.clone()
    noise = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(1))
    q[0, :, 3], k[0, :, 5] = noise * 3
    q, k = (x.reshape(1, 2, 256, 16) for x in (q, k))
    attending = Attending(SpargeAttn(block=16, topk=0.07), q, k, v, place=Place(0, 256, None))
    attending()
    pattern = attending.seen().view(2, 16, 16, 16, 16).all(4).all(2)
    assert bool(pattern[:, 3].all())
    assert bool(pattern[:, :, 5].all())
    others = [row for row in range(16) if row != 3]
    assert pattern[:, others].sum(-1).unique().tolist() == [2]


def test_likeness_is_the_mean_cosine_of_all_pairs() -> None:
    x = torch.randn(1, 10, 4, generator=torch.Generator().manual_seed(0))
    segments = Segments(None, torch.tensor([[0, 6, 4, 0, 0]]))
    pooled = pool(x, segments, 2)
    unit = torch.nn.functional.normalize(x[0].double(), dim=-1)
    cosines = unit @ unit.T
    expected = torch.stack([cosines[:6, :6].mean(), cosines[6:, 6:].mean()])
    for head in range(2):
        torch.testing.assert_close(pooled.alike[head].double(), expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(pooled.mean[head, 1], x[0, 6:].mean(0))


def test_a_mean_that_all_keys_share_changes_no_choice_of_sparge_attn() -> None:
    q, k, v = smooth(tokens=256)
    method = SpargeAttn(block=16, cdf=0.5, similarity=0.3)
    plans = []
    for key in (k, k + 20):
        attending = Attending(method, q, key, v, place=Place(0, 256, LATTICE))
        attending()
        plans.append(attending.seen())
    assert torch.equal(*plans)


def test_rettention_repeats_what_the_band_misses() -> None:
    # While nothing changes, ratio and residual make the band exact.
    attending = Attending(Rettention(block=16, growth=0.0), *smooth(), place=PLACE)
    densities = []
    for step in range(7):
        out = attending()
        assert attending.error(out) < 1e-4
        densities.append(len(attending.plans))
        attending.plans.clear()
        del step
    # Everything is computed first and five evaluations later, beside the band.
    assert densities == [2, 1, 1, 1, 1, 2, 1]


def test_rettention_scales_the_band_by_a_share_that_grows_up_to_one() -> None:
    q, k, v = smooth()
    attending = Attending(Rettention(block=16, growth=0.3), q, k, v, place=PLACE)
    attending()
    kept = attending.problem.kept("missed")
    assert kept is not None
    assert kept.context is not None
    share = kept.context
    assert bool((share <= 1 + 1e-6).all())
    assert float(share[:, :, 6:262].mean()) < 0.9
    out = attending()
    band, _ = attending.run(attending.plans[-1])
    expected = band * (share + 0.3).clamp(max=1) + kept.hidden
    torch.testing.assert_close(out, expected)


def test_rettention_without_room_computes_everything() -> None:
    attending = Attending(Rettention(block=16), *smooth(), place=PLACE)
    for _ in range(3):
        attending.memory.kept.clear()
        assert attending.error(attending()) < 1e-5


def test_twilight_keeps_the_single_keys_that_weigh_most() -> None:
    # One query for all, so the estimate by the mean of queries is exact.
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 1, 1, 64, 16, generator=generator)
    q = torch.randn(1, 1, 1, 16, generator=generator).expand(1, 1, 64, 16)
    method = Twilight(q_clusters=1, k_clusters=4, top_p=1.0, token_p=0.7)
    attending = Attending(method, q, k, v)
    attending()
    weights = (q[0, 0] @ k[0, 0].T * attending.attention.scale)[0].double().softmax(0)
    largest = weights.sort(descending=True)
    needed = int((largest.values.cumsum(0) < 0.7).sum()) + 1
    expected = torch.zeros(64, dtype=torch.bool)
    expected[largest.indices[:needed]] = True
    assert torch.equal(attending.seen()[0], expected.expand(64, 64))


def test_twilight_computes_fewer_scores_than_what_it_filters() -> None:
    options: dict[str, Any] = {"q_clusters": 12, "k_clusters": 12, "top_p": 0.9}
    coarse = Attending(SVG2(**options), *clustered(gain=1.5))
    fine = Attending(Twilight(token_p=0.8, **options), *clustered(gain=1.5))
    coarse()
    fine()
    assert fine.density < 0.8 * coarse.density
    assert not bool((fine.seen() & ~coarse.seen()).any())


def test_token_sparse_leaves_out_tokens_that_nobody_looks_at() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.rand(1, 1, 100, 16, generator=generator)
    k = torch.rand(1, 1, 100, 16, generator=generator)
    # All queries are positive: keys of a large negative sum weigh nothing.
    k[:, :, 20:60] -= 20
    v = torch.randn(1, 1, 100, 16, generator=generator)
    attending = Attending(TokenSparse(tau=1e-3), q, k, v, place=Place(4, 90, None))
    out = attending()
    seen = attending.seen()[0]
    left = list(range(20, 60))
    kept = [token for token in range(4, 94) if token not in left]
    assert bool(seen[kept][:, kept].all())
    assert not bool(seen[left].any())
    assert not bool(seen[kept][:, left].any())
    text = [*range(4), *range(94, 100)]
    assert bool(seen[text].all())
    assert bool(seen[kept][:, text].all())
    assert torch.equal(out[0, 0, left], torch.zeros(40, 16))
    exact = attending.exact()[0, 0, kept]
    torch.testing.assert_close(out[0, 0, kept].double(), exact, atol=1e-4, rtol=1e-4)


def test_what_goes_by_places_needs_them() -> None:
    for method in (SVG1(block=16), Jenga(block=16), Radial(block=16)):
        attending = Attending(method, *smooth(), place=Place(6, 256, None))
        assert method.unfit(attending.problem) == "how the picture's tokens lie is not known"


def test_a_single_block_or_frame_stays_dense() -> None:
    whole = Attending(SVG1(), *smooth(tokens=64), place=Place(0, 64, (1, 8, 8)))
    for method in (SVG1(), Jenga(), SpargeAttn(), Rettention()):
        assert method.unfit(whole.problem) == "the picture's 64 tokens are one block of 128"
    assert Radial().unfit(whole.problem) == "there is one frame only"
    clip = Attending(Radial(), *smooth(tokens=64), place=Place(0, 64, (2, 4, 8)))
    assert Radial().unfit(clip.problem) == "the picture's 64 tokens are one block of 128"


WRONG: list[tuple[type[SparseMethod], dict[str, Any], str]] = [
    (SVG1, {"density": 0.0}, "density is 0.0; expected more than 0"),
    (SVG1, {"density": 1.2}, "density is 1.2"),
    (SVG1, {"rows": 0}, "rows is 0"),
    (SVG1, {"block": 0}, "block is 0"),
    (Jenga, {"drop_rate": -0.1}, "drop_rate is -0.1"),
    (Jenga, {"top_p": 0.0}, "top_p is 0.0"),
    (Jenga, {"block": 1.5}, "block is 1.5"),
    (SpargeAttn, {"cdf": 0.0}, "cdf is 0.0"),
    (SpargeAttn, {"topk": 1.1}, "topk is 1.1"),
    (SpargeAttn, {"similarity": 2.0}, "similarity is 2.0"),
    (Radial, {"decay": 0.0}, "decay is 0.0"),
    (Radial, {"coverage": 1.5}, "coverage is 1.5"),
    (Rettention, {"density": -1.0}, "density is -1.0"),
    (Rettention, {"refresh": 0}, "refresh is 0"),
    (Rettention, {"growth": -0.1}, "growth is -0.1"),
    (Twilight, {"token_p": 0.0}, "token_p is 0.0"),
    (Twilight, {"top_p": 3.0}, "top_p is 3.0"),
    (TokenSparse, {"tau": 1.0}, "tau is 1.0"),
    (TokenSparse, {"rows": 0}, "rows is 0"),
]


@pytest.mark.parametrize(("cls", "options", "message"), WRONG)
def test_a_wrong_option_is_refused(
    cls: type[SparseMethod], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=f"{cls.__name__}: {message}"):
        cls(**options)


@pytest.mark.parametrize(
    "cls", [SVG1, Jenga, SpargeAttn, Radial, Rettention, Twilight, TokenSparse, SVG2]
)
def test_neutral_asks_for_everything_and_the_default_does_not(cls: type[SparseMethod]) -> None:
    assert cls().neutral().computes_all
    assert not cls().computes_all
    assert 0 < cls().expected_density < 1
