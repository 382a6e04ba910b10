"""SVG-EAR errs less than SVG2 on the same scores, and spends them where centroids err most."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from accel.errors import OptionError
from sparse_attn.plan.tails import tail_scores
from sparse_attn.svg2 import SVG2
from sparse_attn.svg_ear import SVGEAR
from tests.unit.sparse_problems import Attending, clustered


def errs(method: SVG2 | SVGEAR, seed: int, **data: Any) -> float:
    """Returns the error on broad attention, of which much is skipped."""
    attending = Attending(method, *clustered(512, seed=seed, gain=0.8, **data))
    return attending.error(attending())


OPTIONS: dict[str, Any] = {"q_clusters": 16, "k_clusters": 24, "density": 0.2}


@pytest.mark.parametrize("seed", range(3))
def test_centroids_halve_the_error_on_clustered_inputs(seed: int) -> None:
    plain = errs(SVG2(**OPTIONS), seed)
    compensated = errs(SVGEAR(second_order=False, routing=False, **OPTIONS), seed)
    assert compensated < plain / 2


@pytest.mark.parametrize("seed", range(3))
def test_routing_by_error_is_better_than_by_mass(seed: int) -> None:
    # Some kinds are spread out, so that their centroids say little about them.
    q, k, v = clustered(512, seed=seed, gain=0.8)
    wide = torch.arange(512) % 2 == 0
    noise = torch.randn(k.shape, generator=torch.Generator().manual_seed(seed))
    k, v = k + 0.6 * noise * wide[:, None], v + noise * wide[:, None]
    errors = []
    for routing in (False, True):
        method = SVGEAR(second_order=False, routing=routing, **OPTIONS)
        attending = Attending(method, q, k, v)
        errors.append(attending.error(attending()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_second_order_never_errs_more_than_what_it_is_gated_by(seed: int) -> None:
    without = errs(SVGEAR(second_order=False, **OPTIONS), seed, noise=0.8)
    gated = errs(SVGEAR(**OPTIONS), seed, noise=0.8)
    assert gated <= without * 1.02


def test_the_second_order_is_the_mean_of_an_exponential_of_gaussian_keys() -> None:
    tokens = 4096
    k = torch.randn(1, 1, tokens, 4, generator=torch.Generator().manual_seed(0))
    q = torch.ones(1, 1, tokens, 4)
    attending = Attending(SVGEAR(q_clusters=1, k_clusters=1, routing=False), q, k, k)
    attending.memory.numbers["next gate"] = 100
    attending.memory.lists["gates"] = [1.0]
    plan = attending.method.plan(attending.problem)
    assert plan is not None
    assert plan.tail is not None
    tail = dataclasses.replace(plan.tail, skipped=torch.ones_like(plan.tail.skipped))
    scale = attending.attention.scale
    exact = (k[0, 0] @ q[0, 0, 0] * scale).double().logsumexp(0) * math.log2(math.e)
    found = float(tail_scores(q[0], tail, scale)[0, 0, 0])
    assert found == pytest.approx(float(exact), abs=0.02)
    # The term is what makes it so: 4 · 1/4 / 2 nats.
    plain = dataclasses.replace(tail, variance=None)
    without = float(tail_scores(q[0], plain, scale)[0, 0, 0])
    assert found - without == pytest.approx(0.5 * math.log2(math.e), rel=0.1)


def test_the_correction_is_limited_for_the_average_query() -> None:
    q, k, v = clustered(256, noise=3.0)
    method = SVGEAR(max_correction=0.25, q_clusters=4, k_clusters=4, density=0.3)
    attending = Attending(method, q, k, v)
    attending.memory.numbers["next gate"] = 100
    attending.memory.lists["gates"] = [1.0, 1.0]
    plan = method.plan(attending.problem)
    assert plan.tail is not None
    assert plan.tail.variance is not None
    average = q.flatten(0, 1).square().mean(1)
    term = (plan.tail.variance @ average[..., None])[..., 0] * attending.attention.scale**2 / 2
    assert float(term.max()) == pytest.approx(0.25, rel=1e-4)


def test_gates_close_where_the_term_hurts_and_hold_for_some_evaluations() -> None:
    attending = Attending(SVGEAR(**OPTIONS), *clustered(512, gain=0.8))
    for step in range(9):
        attending()
        assert attending.memory.numbers["next gate"] == (8 if step < 8 else 16)
    attending.memory.lists["gates"] = [0.0, 1.0]
    attending()
    tail = attending.plans[-1].tail
    assert tail is not None
    assert tail.variance is not None
    assert not bool(tail.variance[0].any())
    assert bool(tail.variance[1].any())


def test_everything_computed_leaves_nothing_to_stand_in() -> None:
    attending = Attending(SVGEAR(q_clusters=8, k_clusters=8, top_p=1.0), *clustered())
    assert attending.error(attending()) < 1e-6


def test_padding_is_in_no_centroid() -> None:
    q, k, v = clustered()
    valid = torch.ones(1, 256, dtype=torch.bool)
    valid[0, 200:] = False
    method = SVGEAR(q_clusters=8, k_clusters=8, density=0.2)
    attending = Attending(method, q, k, v, valid=valid)
    out = attending()
    loud = k.clone(), v.clone()
    for x in loud:
        x[:, :, 200:] *= 50
    other = Attending(method, q, *loud, valid=valid)
    tail = attending.plans[0].tail
    assert tail is not None
    assert int(tail.bias.exp2().sum()) == 2 * 200
    assert attending.error(out) < 0.3
    assert other.error(other()) < 0.5


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(OptionError, match="max_correction is -1"):
        SVGEAR(max_correction=-1)
    with pytest.raises(OptionError, match="top_p is 2"):
        SVGEAR(top_p=2)
