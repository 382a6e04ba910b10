"""Budgets keep exactly what they pay for; text is always seen, padding never."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparse_attn.backends.reference import mask_of
from sparse_attn.plan.budget import density_of, keep_density, keep_share, largest, mass_left
from sparse_attn.plan.samples import attend_scores, relative_error, sample_rows, scores_of
from sparse_attn.plan.segments import make_plan, segment_of_places, sort_tokens, unsorted

HALVES = torch.tensor([[[0.5, 0.25, 0.125, 0.125]]]).log2()


def test_mass_left_counts_what_is_no_larger() -> None:
    shuffled = HALVES[..., [2, 0, 1, 3]]
    # Of equal items the first counts as the smaller.
    assert mass_left(shuffled).tolist() == [[[0.125, 1.0, 0.5, 0.25]]]


@pytest.mark.parametrize(
    ("p", "kept"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.74, 2), (0.76, 4), (1.0, 4)]
)
def test_the_item_that_crosses_the_share_is_kept(p: float, kept: int) -> None:
    # The two smallest are equal: a threshold keeps both or none.
    assert int(keep_share(HALVES, p).sum()) == kept
    # Sorted, one of them is enough if it crosses.
    exact = keep_share(HALVES, torch.tensor([p]))
    assert int(exact.sum()) == (3 if p == 0.76 else kept)


@given(st.integers(0, 2**20), st.floats(0.05, 0.99))
@settings(max_examples=40, deadline=None)
def test_what_is_kept_holds_the_share_and_nothing_of_it_can_be_spared(seed: int, p: float) -> None:
    scores = torch.randn(2, 3, 17, generator=torch.Generator().manual_seed(seed)) * 3
    weights = torch.exp2(scores.double())
    for share in (p, torch.full((2,), p)):
        keep = keep_share(scores, share)
        mass = (weights * keep).sum(-1) / weights.sum(-1)
        assert bool((mass >= p - 1e-5).all())
        least = weights.where(keep, math.inf).amin(-1) / weights.sum(-1)
        assert bool((mass - least < p + 1e-5).all())


def test_every_head_may_have_a_share_of_its_own() -> None:
    scores = HALVES.expand(3, 1, 4)
    keep = keep_share(scores, torch.tensor([0.4, 0.6, 1.0]))
    assert keep.sum(-1).flatten().tolist() == [1, 2, 4]


def test_a_least_share_of_the_items_is_kept_in_any_case() -> None:
    scores = torch.tensor([[[9.0, 1.0, 2.0, 0.0, 3.0]]])
    assert keep_share(scores, 0.5, least=0.59)[0, 0].tolist() == [True, False, False, False, True]
    assert largest(scores, 0).sum() == 0


def test_items_without_weight_are_not_kept() -> None:
    scores = torch.tensor([[[0.0, -math.inf, 1.0]]])
    assert keep_share(scores, 0.999)[0, 0].tolist() == [True, False, True]


def test_density_pays_for_the_highest_priorities() -> None:
    priority = torch.tensor([[[8.0, 1.0], [2.0, 4.0]]])
    sizes = torch.tensor([[10, 30]])
    # Costs are 100, 300 and 300, 900 of 1600; the two best of the rows cost 1000.
    keep = keep_density(priority, 1000 / 1600, sizes, sizes)
    assert keep.tolist() == [[[True, False], [False, True]]]
    assert density_of(keep, sizes, sizes).tolist() == [1000 / 1600]
    assert keep_density(priority, 0.82, sizes, sizes).tolist() == [[[True, False], [True, True]]]
    assert bool(keep_density(priority, 1.0, sizes, sizes).all())


def test_every_row_keeps_its_best_also_beyond_the_budget() -> None:
    priority = torch.rand(2, 6, 9, generator=torch.Generator().manual_seed(0))
    sizes = torch.full((2, 9), 5)
    keep = keep_density(priority, 0.01, sizes[:, :6], sizes)
    assert torch.equal(keep, largest(priority, 1))


def test_density_may_differ_by_head() -> None:
    priority = torch.rand(2, 20, 30, generator=torch.Generator().manual_seed(0))
    sizes = torch.full((2, 30), 4)
    keep = keep_density(priority, torch.tensor([0.2, 0.7]), sizes[:, :20], sizes)
    found = density_of(keep, sizes[:, :20], sizes)
    torch.testing.assert_close(found, torch.tensor([0.2, 0.7]), atol=0.01, rtol=0)


def text_first_and_last(valid: Tensor | None = None) -> Tensor:
    """Returns what is seen, [2, 10, 10] in original order; tokens 2 to 7 are the picture's."""
    labels = torch.tensor([[0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]])
    queries = sort_tokens(labels, 2, start=2, tokens=10)
    keys = sort_tokens(labels, 2, start=2, tokens=10, valid=valid)
    keep = torch.tensor([[[True, False], [False, True]]]).expand(2, 2, 2)
    plan = make_plan(keep, queries, keys)
    plan.tiles.check()
    seen = torch.zeros(2, 10, 10, dtype=torch.bool)
    for head in range(2):
        q, k = (order[head] for order in (plan.q_order, plan.kv_order))  # type: ignore[index]
        seen[head, q[:, None], k] = mask_of(plan.tiles)[head]
    return seen


def test_text_sees_and_is_seen_by_everything() -> None:
    seen = text_first_and_last()
    text = [0, 1, 8, 9]
    assert bool(seen[:, text].all())
    assert bool(seen[:, :, text].all())
    labels = torch.tensor([[0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]])
    assert torch.equal(seen[:, 2:8, 2:8], labels[:, :, None] == labels[:, None])


def test_padding_is_seen_by_nobody() -> None:
    valid = torch.ones(2, 10, dtype=torch.bool)
    valid[0, 9] = valid[1, 4] = False
    seen = text_first_and_last(valid)
    assert torch.equal(seen, text_first_and_last() & valid[:, None])


def test_tokens_that_stand_in_order_need_none() -> None:
    labels = torch.tensor([[0, 0, 1, 2]])
    assert unsorted(sort_tokens(labels, 3, start=1, tokens=7)).order is None
    mixed = unsorted(sort_tokens(labels.flip(1), 3, start=1, tokens=7))
    assert mixed.order is not None
    assert unsorted(unsorted(sort_tokens(labels, 3, start=1, tokens=7))).order is None


def test_places_know_their_segment() -> None:
    assert segment_of_places(torch.tensor([[2, 0, 1], [1, 1, 1]])).tolist() == [
        [0, 0, 2],
        [0, 1, 2],
    ]


def test_sampled_rows_are_distinct_and_seeded() -> None:
    rows = sample_rows(100, 12, 5)
    assert len(set(rows.tolist())) == 12
    assert torch.equal(rows, sample_rows(100, 12, 5))
    assert sample_rows(3, 12, 5).tolist() == [0, 1, 2]


def test_sampled_attention_is_that_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(4, 5, 8, generator=generator)
    k, v = torch.randn(2, 2, 9, 8, generator=generator)
    valid = torch.ones(4, 9, dtype=torch.bool)
    valid[:, 7:] = False
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), *(x[:, :7].double().repeat_interleave(2, 0) for x in (k, v)), scale=0.4
    )
    found = attend_scores(scores_of(q, k, scale=0.4, valid=valid), v)
    torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(relative_error(found * 1.1, found), torch.full((4,), 0.1))
