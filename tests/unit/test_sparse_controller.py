"""The controller measures the error that there is, and steers every head's to its target."""

import pytest
import torch

from sparse_attn.controller import Controller, sampled_error
from sparse_attn.plan.cost import CPU, GPU, predicted_gain
from sparse_attn.svg2 import SVG2
from sparse_attn.svg_ear import SVGEAR
from tests.unit.sparse_problems import Attending, clustered


def test_the_sampled_error_of_all_rows_is_the_error() -> None:
    attending = Attending(SVG2(q_clusters=8, k_clusters=8, top_p=0.5), *clustered())
    out = attending()
    found = sampled_error(attending.problem, out, 256)
    exact = attending.exact()[0]
    expected = (out[0].double() - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cls", [SVG2, SVGEAR])
def test_every_head_comes_to_its_target_from_either_side(cls: type[SVG2] | type[SVGEAR]) -> None:
    q, k, v = clustered(512, gain=1.2)
    for start in (0.3, 0.99):
        method = cls(q_clusters=16, k_clusters=24, top_p=start, error=0.1, min_kc_ratio=0.0)
        attending = Attending(method, q, k, v)
        for _ in range(24):
            attending.memory.numbers["next look"] = 0
            out = attending()
        errors = sampled_error(attending.problem, out, 512)
        assert bool((errors < 0.16).all())
        # With centroids so little is lost that a head may be at the least share that there is.
        least = torch.tensor(attending.memory.lists["shares"]) < 0.101
        assert bool(((errors > 0.03) | least).all())
        assert cls is SVGEAR or not bool(least.any())


def test_heads_over_budget_go_dense_and_stay_so() -> None:
    attending = Attending(SVG2(q_clusters=8, k_clusters=8, error=0.1), *clustered())
    exact = attending.exact().float()
    wrong = exact.clone()
    wrong[:, 1] = 0
    controller = Controller(0.1, every=1)
    # Head 0 errs nothing and may spare half as much again, head 1 errs all.
    controller.observe(attending.problem, wrong, torch.tensor([0.6, 0.996]))
    assert attending.memory.lists["shares"] == pytest.approx([0.4, 1.0])
    attending.clock.advance()
    controller.observe(attending.problem, exact, torch.tensor([0.997, 1.0]))
    assert attending.memory.lists["shares"] == pytest.approx([0.9955, 1.0])
    attending()
    assert bool(attending.seen()[1].all())
    assert not bool(attending.seen()[0].all())


def test_it_looks_only_every_few_evaluations_and_says_what_it_saw() -> None:
    attending = Attending(SVG2(q_clusters=8, k_clusters=8, error=0.1), *clustered())
    looked = []
    for _ in range(12):
        attending()
        looked.append(attending.memory.numbers.pop("error", None) is not None)
    assert [step for step, did in enumerate(looked) if did] == [0, 5, 10]


def test_a_head_may_never_spare_more_than_most_of_its_mass() -> None:
    attending = Attending(SVG2(q_clusters=8, k_clusters=8, error=1e3), *clustered())
    for _ in range(8):
        attending.memory.numbers["next look"] = 0
        attending()
    assert min(attending.memory.lists["shares"]) == pytest.approx(0.1)


def test_shares_begin_with_the_method_s_own() -> None:
    attending = Attending(SVG2(), *clustered())
    assert Controller(0.1).shares(attending.problem, 0.7).tolist() == pytest.approx([0.7, 0.7])


def test_a_gain_is_predicted_where_the_design_s_table_has_one() -> None:
    video = predicted_gain(GPU, heads=40, tokens=75_600, head_dim=128, density=0.25, clusters=1600)
    picture = predicted_gain(GPU, heads=24, tokens=4608, head_dim=128, density=0.35, clusters=100)
    large = predicted_gain(GPU, heads=24, tokens=16_900, head_dim=128, density=0.3, clusters=360)
    assert 2.0 < video < 2.4
    assert picture < 1 < large
    sizes = [64, 256, 1024, 4096]
    gains = [
        predicted_gain(CPU, heads=8, tokens=n, head_dim=64, density=0.25, clusters=n // 45)
        for n in sizes
    ]
    assert gains == sorted(gains)
    assert gains[1] < 1 < gains[2]
    assert 2.5 < gains[3] < 3
