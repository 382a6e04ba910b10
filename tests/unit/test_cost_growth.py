"""Attention grows with the square of the tokens, all else linearly, and savings follow suit."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from accel.errors import OptionError
from accel.flops import count
from accel.growth import Growth
from accel.savings import (
    Scope,
    break_even_density,
    fewest_tokens,
    planning_share,
    reduced,
    sparse,
)
from accel.work import Entry, Inputs, Part, Work
from tests.coverage.entry import grid
from tests.tiny import models
from tests.unit.full_sizes import FULL_SIZES, empty


def work(flops: Mapping[Part, float], tokens: int = 0, context: int = 0, name: str = "M") -> Work:
    """Returns what a model of one module does."""
    entry = Entry({part: float(count) for part, count in flops.items()}, 100.0, 7.0, 50.0)
    return Work(name, {"": entry}, tokens, context)


def wan_work(frames: int) -> Work:
    """Returns the work of the tiny Wan on so many frames of 16 tokens."""
    inputs = {
        "hidden_states": empty(1, 4, frames, 8, 8),
        "encoder_hidden_states": empty(1, 5, models.TEXT_DIM),
        "timestep": empty(1),
    }
    return count(models.wan(), Inputs(kwargs=inputs)).work


def flux_work(height: int, width: int) -> Work:
    """Returns the work of the tiny Flux on a picture of so many tokens beside 5 of text."""
    inputs = {
        "hidden_states": empty(1, height * width, 64),
        "encoder_hidden_states": empty(1, 5, models.TEXT_DIM),
        "pooled_projections": empty(1, models.POOLED_DIM),
        "timestep": empty(1),
        "img_ids": grid(height, width),
        "txt_ids": empty(5, 3),
    }
    return count(models.flux(), Inputs(kwargs=inputs)).work


def test_twice_the_tokens_cost_four_times_the_core_and_twice_the_rest() -> None:
    one, two = wan_work(2), wan_work(4)
    assert two.tokens == 2 * one.tokens
    assert two.flops[Part.CORE] == 4 * one.flops[Part.CORE]
    for part in (Part.PROJECTIONS, Part.MLP):
        assert two.flops[part] == 2 * one.flops[part]


def test_two_sizes_foretell_a_third_part_by_part() -> None:
    growth = Growth.between(wan_work(1), wan_work(2))
    third = wan_work(6)
    found = growth.flops(third.tokens)
    assert found == pytest.approx(third.flops)
    assert growth.total(third.tokens) == pytest.approx(third.total)


def test_text_beside_the_picture_is_found_from_two_sizes_in_any_order() -> None:
    growth = Growth.between(flux_work(4, 8), flux_work(4, 4))
    assert growth.beside == pytest.approx(5)
    assert growth.total(64) == pytest.approx(flux_work(8, 8).total)


def test_linear_attention_is_not_taken_for_quadratic() -> None:
    small = work({Part.CORE: 300, Part.MLP: 100}, tokens=100)
    large = work({Part.CORE: 600, Part.MLP: 200}, tokens=200)
    assert Growth.between(small, large).total(1000) == pytest.approx(4000)
    assert math.isinf(Growth.between(small, large).crossover)


def test_the_core_outweighs_the_rest_from_where_the_formula_says() -> None:
    # 4 N^2 = 100 + 36 N has its positive root at N = 11.25...
    small = work({Part.CORE: 4 * 100, Part.MLP: 100 + 360}, tokens=10)
    large = work({Part.CORE: 4 * 400, Part.MLP: 100 + 720}, tokens=20)
    crossover = Growth.between(small, large).crossover
    assert 4 * crossover**2 == pytest.approx(100 + 36 * crossover)


def test_wan_1_3b_is_half_attention_where_its_formula_says() -> None:
    full = next(full for full in FULL_SIZES if full.name.startswith("wan-1.3b"))
    model, inputs = full.make(), full.call().kwargs
    sizes = ({**inputs, "hidden_states": empty(1, 16, frames, 60, 104)} for frames in (5, 21))
    growth = Growth.between(*(count(model, Inputs(kwargs=size)).work for size in sizes))
    # 4 N d against 12 d^2 + 4 f d + 4 T d for each token and block.
    d, f, t = 1536, 8960, 512
    assert growth.crossover == pytest.approx(3 * d + f + t, rel=0.01)


def test_growth_needs_one_model_at_two_sizes() -> None:
    one = work({Part.CORE: 4}, tokens=2)
    with pytest.raises(OptionError, match="M at 2 tokens and M at 2"):
        Growth.between(one, one)
    with pytest.raises(OptionError, match="one model at two sizes"):
        Growth.between(one, work({Part.CORE: 16}, tokens=4, name="N"))


# Projections for one layer: tokens, clusters, iterations, planning over dense, break-even density.
_PROJECTED = [
    (75_600, 1300, 2, 0.041, 0.57),
    (118_800, 1400, 2, 0.028, 0.58),
    (32_760, 1300, 1, 0.057, 0.56),
]


@pytest.mark.parametrize(("tokens", "clusters", "iterations", "planning", "density"), _PROJECTED)
def test_planning_and_break_even_are_those_projected_for_video(
    tokens: int, clusters: int, iterations: int, planning: float, density: float
) -> None:
    found = planning_share(tokens, clusters=clusters, iterations=iterations)
    assert found == pytest.approx(planning, abs=0.003)
    assert break_even_density(planning) == pytest.approx(density, abs=0.005)


def test_a_small_picture_pays_more_for_planning_than_it_can_save() -> None:
    # Of 0.53 in planning, 0.47 / 1.684 is left.
    assert break_even_density(0.53) == pytest.approx(0.28, abs=0.002)
    assert break_even_density(1.2) == 0


def test_at_the_fewest_tokens_sparse_and_dense_take_as_long() -> None:
    least = fewest_tokens(0.25)
    planning = planning_share(least)
    assert break_even_density(planning) == pytest.approx(0.25)
    core = work({Part.CORE: 1000, Part.MLP: 10})
    assert sparse(core, 0.25, planning=planning).total == pytest.approx(core.total)
    assert sparse(core, 0.25, planning=planning_share(2 * least)).total < core.total
    assert math.isinf(fewest_tokens(0.6))


@pytest.mark.parametrize(
    ("scope", "share", "core", "projections", "mlp", "cross", "moved"),
    [
        ("q", 0.5, 0.5, 1, 1, 1, 1),
        ("kv", 0.7, 0.7, 1, 1, 1, 1),
        ("attention", 0.5, 0.25, 0.5, 1, 1, 1),
        ("mlp", 0.5, 1, 1, 0.5, 1, 1),
        ("block", 0.5, 0.25, 0.5, 0.5, 0.5, 0.5),
        ("model", 0.5, 0.25, 0.5, 0.5, 0.5, 0.5),
    ],
)
def test_each_scope_saves_its_own_work(
    scope: str,
    share: float,
    core: float,
    projections: float,
    mlp: float,
    cross: float,
    moved: float,
) -> None:
    parts = (Part.CORE, Part.PROJECTIONS, Part.MLP, Part.CROSS)
    whole = work({**dict.fromkeys(parts, 100), Part.REST: 100}, tokens=64)
    left = reduced(whole, scope, share)
    shares = [left.flops[part] / 100 for part in parts]
    assert shares == pytest.approx([core, projections, mlp, cross])
    assert left.flops[Part.REST] == 100
    assert left.moved == whole.moved * moved


def test_text_is_never_reduced() -> None:
    # 64 of 80 tokens are the picture's; half of them and the text are 48.
    left = reduced(work({Part.CORE: 100}, tokens=64, context=16), Scope.BLOCK, 0.5)
    assert left.flops[Part.CORE] == pytest.approx(100 * 0.6**2)


def test_reductions_of_published_models_gain_what_the_formulas_give() -> None:
    wan = work({Part.CORE: 197.8, Part.PROJECTIONS: 23.2, Part.CROSS: 7.9, Part.MLP: 54.1}, 32_760)
    gain = {scope: wan.total / reduced(wan, scope, 0.7).total for scope in ("kv", "q")}
    assert gain["kv"] == gain["q"] == pytest.approx(1.27, abs=0.01)
    both = reduced(reduced(wan, "q", 0.5), "kv", 0.7)
    assert wan.total / both.total == pytest.approx(1.83, abs=0.01)
    assert wan.total / reduced(wan, "mlp", 0.5).total == pytest.approx(1.11, abs=0.01)
    assert wan.total / reduced(wan, "block", 0.5).total == pytest.approx(3.07, abs=0.03)


def test_wrong_shares_and_scopes_are_refused() -> None:
    one = replace(work({Part.CORE: 1}), tokens=4)
    for call in (
        lambda: reduced(one, "q", 1.5),
        lambda: sparse(one, -0.1, planning=0),
        lambda: fewest_tokens(2),
    ):
        with pytest.raises(OptionError, match="expected a share from 0 to 1"):
            call()
    with pytest.raises(OptionError, match="scope is 'x'; expected one of q, kv"):
        reduced(one, "x", 0.5)
    with pytest.raises(OptionError, match="tokens is 0"):
        planning_share(0)
