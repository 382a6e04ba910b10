"""Caches and sparse attention on one model: each does its part, and neutral settings nothing."""

from typing import Any

import pytest
import torch

import accel
from accel.method import Method
from caching import PAB, DeepCache, FirstBlockCache, LinearPlan
from sparse_attn import SVG2
from tests.tiny import CASES

_OPEN: dict[str, Any] = {"warmup": 1, "tail": 0, "min_steps": 0}
SPARSE = SVG2(
    top_p=0.3,
    q_clusters=3,
    k_clusters=4,
    min_kc_ratio=0.0,
    min_tokens=0,
    dense_steps=0.0,
    dense_layers=0.0,
)
PAIRS = [
    ("wan", FirstBlockCache(threshold=10.0, max_streak=2, **_OPEN)),
    ("flux_true_cfg", LinearPlan(share=0.5)),
    ("flux", PAB(window=(0.0, 1.0), **_OPEN)),
    ("sd15", DeepCache(interval=2, min_steps=0)),
]


@pytest.mark.parametrize(("name", "cache"), PAIRS, ids=lambda part: str(part)[:20])
def test_attention_is_sparse_in_what_the_cache_computes(name: str, cache: Method) -> None:
    case = CASES[name]
    pipe = case.make()
    plain = case.run(pipe, steps=10)
    with accel.patch(pipe, cache, SPARSE) as handle:
        both = case.run(pipe, steps=10)
        report = handle.report
    with accel.patch(pipe, cache):
        cached = case.run(pipe, steps=10)
    assert report.reused > 0
    skipped = [decision for decision in report.decisions if decision.scores_skipped]
    assert skipped
    assert not torch.equal(both, cached)
    assert torch.equal(case.run(pipe, steps=10), plain)


@pytest.mark.parametrize(("name", "cache"), PAIRS, ids=lambda part: str(part)[:20])
def test_neutral_settings_of_both_change_nothing(name: str, cache: Method) -> None:
    case = CASES[name]
    pipe = case.make()
    plain = case.run(pipe)
    with accel.patch(pipe, cache.neutral(), SPARSE.neutral()):
        assert torch.equal(case.run(pipe), plain)


def test_two_sparse_methods_conflict() -> None:
    with pytest.raises(accel.ConflictError, match="replaces the attention"):
        accel.patch(CASES["wan"].make(), SPARSE, SPARSE)
