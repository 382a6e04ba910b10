"""Assignment, sorting, statistics, selection and merging, each against its definition."""

import math

import pytest
import torch
from torch import Tensor

from sparse_attn.kernels.assign import assign
from sparse_attn.kernels.assign import reference as assign_reference
from sparse_attn.kernels.merge import merge_parts
from sparse_attn.kernels.merge import reference as merge_reference
from sparse_attn.kernels.permute import cluster_stats, permute_with_stats, sort_by_label
from sparse_attn.kernels.permute import reference as permute_reference
from sparse_attn.kernels.top_p import keep_mass
from sparse_attn.kernels.top_p import reference as top_p_reference
from tests.kernels.support import DEVICE, HALF_AND_FULL, dense, seeded


def _drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", HALF_AND_FULL, ids=str)
@pytest.mark.parametrize("head_dim", [20, 72, 128])
@pytest.mark.parametrize("op", [assign, assign_reference.assign], ids=["kernel", "reference"])
def test_no_centroid_is_nearer_than_the_assigned_one(op, head_dim, dtype) -> None:
    x = _drawn(3, 2, 150, head_dim, dtype=dtype)[:, 1]
    centroids = _drawn(3, 70, head_dim, seed=1)
    labels = op(x, centroids)
    assert labels.dtype == torch.int32
    gaps = x.double()[:, :, None] - centroids.to(dtype).double()[:, None]
    distance = gaps.square().sum(-1)
    taken = distance.gather(2, labels.long()[..., None])[..., 0]
    # Products and sums are float32.
    assert bool((taken <= distance.amin(2) + 1e-5 * head_dim).all())


@pytest.mark.parametrize("op", [assign, assign_reference.assign], ids=["kernel", "reference"])
def test_of_equally_near_centroids_the_first_is_taken(op) -> None:
    centroids = torch.zeros(1, 70, 16, device=DEVICE)
    centroids[0, [5, 40, 69], 0] = 2.0
    x = torch.zeros(1, 3, 16, device=DEVICE)
    x[0, 1, 0] = 2.0
    assert op(x, centroids).tolist() == [[0, 5, 0]]


def test_the_reference_assigns_few_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x, centroids = _drawn(2, 50, 8), _drawn(2, 7, 8, seed=1)
    whole = assign_reference.assign(x, centroids)
    monkeypatch.setattr(assign_reference, "_SCORES", 32)
    assert torch.equal(assign_reference.assign(x, centroids), whole)


@pytest.mark.parametrize("tokens", [1, 512, 1100])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_sorting_by_label_is_a_stable_sort(tokens: int, dtype: torch.dtype) -> None:
    labels = torch.randint(0, 9, (tokens, 2), generator=seeded(tokens)).to(DEVICE, dtype).T
    labels = labels.where(labels != 4, 3)
    order, sizes = sort_by_label(labels, 11)
    assert torch.equal(order, labels.argsort(dim=1, stable=True))
    assert torch.equal(sizes, torch.stack([row.bincount(minlength=11) for row in labels]).int())
    expected = permute_reference.sort_by_label(labels, 11)
    assert torch.equal(expected[0], order)
    assert torch.equal(expected[1], sizes)


def test_nothing_sorts_to_nothing() -> None:
    order, sizes = sort_by_label(torch.empty(2, 0, dtype=torch.int64, device=DEVICE), 3)
    assert order.shape == (2, 0)
    assert sizes.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("dtype", HALF_AND_FULL, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80])
def test_statistics_are_the_clusters_means_and_the_copy_is_exact(head_dim, dtype) -> None:
    x = _drawn(2, 3, 90, head_dim, dtype=dtype)[:, 1]
    labels = torch.randint(0, 5, (2, 90), generator=seeded(2)).to(DEVICE)
    labels = labels.where(labels != 2, 4)
    order, sizes = sort_by_label(labels, 6)
    copy, mean, square = permute_with_stats(x, order, sizes)
    assert torch.equal(copy, torch.stack([x[g][order[g]] for g in range(2)]))
    for g in range(2):
        for cluster in range(6):
            rows = x[g][labels[g] == cluster].double()
            wanted = rows.mean(0) if len(rows) else torch.zeros(head_dim, device=DEVICE).double()
            torch.testing.assert_close(mean[g, cluster].double(), wanted, atol=1e-6, rtol=1e-5)
            wanted = rows.square().mean(0) if len(rows) else torch.zeros_like(wanted)
            torch.testing.assert_close(square[g, cluster].double(), wanted, atol=1e-6, rtol=1e-5)
    again = cluster_stats(x, order, sizes)
    assert torch.equal(again[0], mean)
    assert torch.equal(again[1], square)
    expected = permute_reference.cluster_stats(x, order, sizes)
    torch.testing.assert_close((mean, square), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(permute_reference.take_tokens(x, order), copy)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("op", [keep_mass, top_p_reference.keep_mass], ids=["kernel", "reference"])
def test_kept_is_the_smallest_set_that_has_the_share(op, p: float) -> None:
    scores = _drawn(2, 45, 3, seed=4).transpose(1, 2) * 4
    scores[0, 1, 7:30] = -math.inf
    keep = op(scores, p)
    assert keep.dtype == torch.bool
    weights = torch.exp2(scores.double())
    share = weights / weights.sum(-1, keepdim=True)
    kept = share * keep
    mass = kept.sum(-1)
    least = kept.masked_fill(~keep, math.inf).amin(-1)
    assert bool((mass >= p - 1e-6).all())
    assert bool((mass - least < p + 1e-6).all())
    assert bool((share.masked_fill(keep, 0).amax(-1) < least).all())
    assert not bool(keep[0, 1, 7:30].any())


@pytest.mark.parametrize("op", [keep_mass, top_p_reference.keep_mass], ids=["kernel", "reference"])
def test_equals_stay_together_and_rows_of_nothing_keep_nothing(op) -> None:
    nothing = -math.inf
    scores = torch.tensor(
        [[[0.0, 1.0, 1.0, nothing], [nothing] * 4, [3.0, 3.0, 3.0, 3.0]]], device=DEVICE
    )
    assert op(scores, 0.5).tolist() == [
        [[False, True, True, False], [False] * 4, [True, True, True, True]]
    ]
    assert op(scores, 1.0).tolist() == [
        [[True, True, True, False], [False] * 4, [True, True, True, True]]
    ]


def test_rows_longer_than_a_chunk_are_kept_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = _drawn(1, 2, 300, seed=6)
    whole = keep_mass(scores, 0.7)
    monkeypatch.setattr("sparse_attn.kernels.top_p.CHUNK", 64)
    assert torch.equal(keep_mass(scores, 0.7), whole)


@pytest.mark.parametrize("dtype", HALF_AND_FULL, ids=str)
@pytest.mark.parametrize("op", [merge_parts, merge_reference.merge_parts], ids=["kernel", "ref"])
def test_merged_parts_are_the_attention_to_both(op, dtype: torch.dtype) -> None:
    q, k, v = (_drawn(2, 2, n, 72, seed=n) for n in (37, 50, 51))
    v = v[:, :, :50]
    mask = torch.ones(4, 37, 50, dtype=torch.bool, device=DEVICE)
    mask[0, :5, :20] = mask[1, :9, 20:] = mask[2, 3] = False
    first, second = mask.clone(), mask.clone()
    first[..., 20:] = second[..., :20] = False
    (o1, l1), (o2, l2) = (dense(q, k, v, m, 0.2) for m in (first, second))
    o2 = o2.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
    out, lse = op(o1.to(dtype), l1.float(), o2, l2.float())
    exact, exact_lse = dense(q, k, v, mask, 0.2)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), exact, atol=2 * step + 1e-6, rtol=2 * step)
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-5, rtol=1e-6)
    assert out.dtype == dtype
    assert bool((out[1, 0, 3] == 0).all())
    assert float(lse[1, 0, 3]) == -math.inf
