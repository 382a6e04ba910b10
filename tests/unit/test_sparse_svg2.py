"""SVG2 computes the heavy pairs of clusters, and remembers clusters only as long as they hold."""

from typing import Any

import pytest
import torch

import accel
from accel.errors import AccelUnsupportedError, OptionError
from accel.picture_tokens import Place
from sparse_attn.kernels.assign import assign
from sparse_attn.svg2 import SVG2
from tests.tiny import CASES
from tests.unit.sparse_problems import Attending, clustered, kinds_of


def a_method(**options: Any) -> SVG2:
    """Returns a method with eight clusters either side, the number of planted ones."""
    return SVG2(**{"q_clusters": 12, "k_clusters": 12, "min_kc_ratio": 0.0, **options})


def test_planted_kinds_see_each_other_and_little_else() -> None:
    attending = Attending(a_method(top_p=0.9), *clustered())
    out = attending()
    seen, kinds = attending.seen(), kinds_of(256)
    same = kinds[:, None] == kinds
    assert seen[:, same].float().mean() > 0.97
    assert attending.density < 0.35
    assert attending.error(out) < 0.12


def test_more_mass_costs_more_scores_and_errs_less() -> None:
    errors, densities = [], []
    for top_p in (0.3, 0.7, 0.99):
        attending = Attending(a_method(top_p=top_p), *clustered(gain=1.0))
        errors.append(attending.error(attending()))
        densities.append(attending.density)
    assert errors == sorted(errors, reverse=True)
    assert densities == sorted(densities)
    assert densities[0] < densities[2]


@pytest.mark.parametrize("density", [0.2, 0.5, 0.8])
def test_the_density_asked_for_is_met(density: float) -> None:
    attending = Attending(
        SVG2(q_clusters=30, k_clusters=40, density=density), *clustered(512, gain=0.5)
    )
    attending()
    assert attending.density == pytest.approx(density, abs=0.03)


def test_all_mass_is_dense_attention() -> None:
    attending = Attending(a_method(top_p=1.0), *clustered())
    assert attending.error(attending()) < 1e-6
    assert attending.density == 1.0


def test_a_least_share_of_clusters_is_seen_in_any_case() -> None:
    few, many = (
        Attending(a_method(top_p=0.01, min_kc_ratio=ratio), *clustered()) for ratio in (0.0, 0.5)
    )
    few()
    many()
    assert few.density < 0.15
    assert many.density > 0.35


def test_text_sees_and_is_seen_and_padding_is_not() -> None:
    q, k, v = clustered(batch=2)
    valid = torch.ones(2, 256, dtype=torch.bool)
    valid[0, 250:] = False
    valid[1, 3] = False
    place = Place(10, 236, None)
    attending = Attending(a_method(top_p=0.3), q, k, v, place=place, valid=valid)
    out = attending()
    seen = attending.seen()
    text = [*range(10), *range(246, 256)]
    by_head = valid.repeat_interleave(2, 0)
    assert not bool(seen[~by_head[:, None].expand_as(seen)].any())
    assert torch.equal(seen[:, text], by_head[:, None].expand(-1, 20, -1))
    assert torch.equal(seen[:, :, text], by_head[:, None, text].expand(-1, 256, -1))
    # What the text gets is exact.
    torch.testing.assert_close(
        out[:, :, text].double(), attending.exact()[:, :, text], atol=1e-5, rtol=1e-5
    )


def test_heads_that_share_keys_share_their_clusters() -> None:
    q, k, v = clustered(heads=4, kv_heads=2, batch=2)
    attending = Attending(a_method(top_p=0.9), q, k, v)
    assert attending.error(attending()) < 0.2
    order = attending.plans[0].kv_order
    assert order is not None
    assert torch.equal(order[::2], order[1::2])


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    def order(seed: int) -> torch.Tensor:
        attending = Attending(a_method(seed=seed), *clustered())
        attending()
        found = attending.plans[0].kv_order
        assert found is not None
        return found

    assert torch.equal(order(1), order(1))
    assert not torch.equal(order(1), order(2))


def test_tokens_are_assigned_anew_only_when_due() -> None:
    q, k, v = clustered()
    attending = Attending(a_method(recluster=3, iterations=0), q, k, v)
    assigned = []
    for _ in range(7):
        attending()
        assigned.append(attending.memory.numbers["key clusters assigned"])
    assert assigned == [0, 0, 0, 3, 3, 3, 6]


def test_drift_has_tokens_assigned_anew_and_means_are_always_fresh() -> None:
    q, k, v = clustered()
    attending = Attending(a_method(recluster=100, max_drift=0.2), q, k, v)
    attending()
    attending.set(q, k + 0.02, v)
    attending()
    assert attending.memory.numbers["key clusters assigned"] == 0
    # Other kinds than before: the labels hold no more, which the next evaluation acts on.
    other = clustered(seed=5)
    attending.set(*other)
    attending()
    assert attending.memory.numbers["key clusters drift"] > 0.2
    out = attending()
    assert attending.memory.numbers["key clusters assigned"] == 3
    assert attending.error(out) < 0.2


def test_kept_centroids_are_where_the_next_assignment_starts() -> None:
    q, k, v = clustered()
    attending = Attending(a_method(recluster=1, iterations=0), q, k, v)
    attending()
    kept = attending.problem.kept("key clusters")
    assert kept is not None
    first = kept.hidden.clone()
    attending()
    again = attending.problem.kept("key clusters")
    assert again is not None
    assert torch.equal(again.hidden, first)
    assert again.context is not None
    assert torch.equal(again.context.int(), assign(k.flatten(0, 1), first))


def test_more_clusters_than_tokens_stay_dense_and_say_so() -> None:
    method = SVG2(q_clusters=300, min_tokens=0, dense_steps=0)
    case = CASES["wan"]
    pipe = case.make()
    expected = case.run(pipe)
    handle = accel.patch(pipe, method)
    assert torch.equal(case.run(pipe), expected)
    assert not handle.report.engaged
    assert "300 clusters are more than the picture's" in handle.report.decisions[0].reason


def test_clusters_go_with_the_tokens() -> None:
    assert SVG2()._counts(75_600) == (590, 1008)
    assert SVG2()._counts(10) == (1, 1)
    assert SVG2(q_clusters=7).clusters(750) == 17


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"density": 0.0}, "density is 0.0"),
        ({"density": 1.5}, "density is 1.5"),
        ({"error": 0.0}, "error is 0.0"),
        ({"density": 0.3, "error": 0.1}, "expected one of them"),
        ({"q_clusters": 0}, "q_clusters is 0"),
        ({"k_clusters": 2.5}, "k_clusters is 2.5"),
        ({"min_kc_ratio": -0.1}, "min_kc_ratio is -0.1"),
        ({"first_iterations": -1}, "first_iterations is -1"),
        ({"iterations": -1}, "iterations is -1"),
        ({"recluster": 0}, "recluster is 0"),
        ({"max_drift": -1.0}, "max_drift is -1.0"),
        ({"dense_steps": 1.5}, "dense_steps is 1.5"),
        ({"dense_layers": -0.5}, "dense_layers is -0.5"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"backend": "cuda"}, "backend is 'cuda'"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"SVG2: {message}|{message}"):
        SVG2(**options)


def test_a_model_without_attention_over_a_picture_is_refused() -> None:
    from tests.unit.toys import Chain

    with pytest.raises(AccelUnsupportedError, match="SVG2 works on self-attention"):
        list(SVG2().bind(sites_of_chain(Chain(2, 3))))


def sites_of_chain(chain: torch.nn.Module) -> Any:
    """Returns the sites of a denoiser that has blocks and no attention."""
    from accel.sites import Kind, ModelSites, Site

    return ModelSites(denoiser=Site(Kind.DENOISER, "", chain))
