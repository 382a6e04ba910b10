"""What a method computes: nothing new when neutral, the same thing every time when engaged."""

import pytest
import torch

import accel
from accel import AccelUnsupportedError
from tests.conformance.support import METHODS, accepts, engaging, fresh, neutral, pairs, patched
from tests.tiny import CASES, Case
from tests.tiny.observe import counting, traces


@pairs()
def test_neutral_setting_is_bit_identical(case: Case, name: str) -> None:
    pipe, handle = patched(case, neutral(name))
    assert torch.equal(case.run(pipe), fresh(case))
    assert handle.report.reused == 0


@pairs()
def test_engaging_setting_engages_and_shows(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    latents = case.run(pipe)
    assert handle.report.engaged
    assert torch.isfinite(latents).all()
    assert not torch.equal(latents, fresh(case))


@pairs()
def test_generations_agree_with_each_other_and_with_a_fresh_pipeline(case: Case, name: str) -> None:
    method = engaging(name)
    pipe, _ = patched(case, method)
    first, second = case.run(pipe), case.run(pipe)
    assert torch.equal(first, second)
    assert torch.equal(first, fresh(case, method))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_method_is_made_for_some_pipeline(name: str) -> None:
    assert any(accepts(name, case) for case in CASES.values())


@pairs(accepted=False)
def test_a_model_it_is_not_made_for_is_refused_by_name(case: Case, name: str) -> None:
    pipe = case.make()
    before = traces(pipe)
    with pytest.raises(AccelUnsupportedError, match=type(case.denoiser(pipe)).__name__):
        accel.patch(pipe, engaging(name))
    assert traces(pipe) == before


@pairs()
def test_report_counts_every_evaluation_and_every_denoiser_call(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    with counting(case.denoisers(pipe)) as count:
        case.run(pipe)
    counted = count()
    # One report for each denoiser that was called.
    reports = tuple(handle.reports)
    decisions = [decision for report in reports for decision in report.decisions]
    assert sum(report.calls for report in reports) == counted == len(decisions)
    assert {report.num_steps for report in reports} == {case.evaluations(6)}
    assert {decision.step for decision in decisions} == set(range(case.evaluations(6)))
