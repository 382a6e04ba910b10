"""What stays dense and why, what is reported, and what a failing backend does."""

from typing import Any

import pytest
import torch

import accel
from accel.errors import AccelUnsupportedError, ConflictError
from accel.report import Report
from sparse_attn import SVG2, Jenga, Radial, SpargeAttn
from sparse_attn.backends import choose
from sparse_attn.plan.plan import Plan
from tests.tiny import CASES

ON: dict[str, Any] = {"min_tokens": 0, "dense_steps": 0.0, "dense_layers": 0.0}
CLUSTERED: dict[str, Any] = {"q_clusters": 3, "k_clusters": 4, "top_p": 0.3, **ON}


def generated(name: str, method: Any, **request: Any) -> tuple[torch.Tensor, Report]:
    """Returns what a tiny pipeline makes with a method, and its report."""
    case = CASES[name]
    pipe = case.make()
    handle = accel.patch(pipe, method)
    return case.run(pipe, **request), handle.report


def test_scores_are_counted_as_run_and_skipped() -> None:
    _, report = generated("wan", SVG2(**CLUSTERED), steps=2)
    tokens, heads, modules = 16, 2, 4
    for decision in report.decisions:
        total = decision.scores_run + decision.scores_skipped
        assert total % (tokens * heads * modules) == 0
        assert decision.scores_skipped > 0
        density = decision.scores_run / total
        assert decision.action == "sparse"
        assert decision.reason == f"density {density:.3f} in 4 modules"
    assert report.scores_run == sum(d.scores_run for d in report.decisions)
    assert report.engaged
    assert report.reused == 0
    share = report.scores_run / (report.scores_run + report.scores_skipped)
    assert f"{share:.1%} run in attention that was offered" in str(report)
    again = Report.from_dict(report.to_dict())
    assert again.scores_skipped == report.scores_skipped


def test_first_evaluations_and_modules_stay_dense() -> None:
    options = {**CLUSTERED, "dense_steps": 0.5, "dense_layers": 0.5}
    _, report = generated("dit", SVG2(**options), steps=4)
    actions = [decision.action for decision in report.decisions]
    assert actions == ["forced", "forced", "sparse", "sparse"]
    assert report.decisions[0].reason == "dense steps (4 modules)"
    assert "in 2 modules; dense: dense layers (2 modules)" in report.decisions[2].reason


def test_small_pictures_stay_dense_and_say_what_was_predicted() -> None:
    expected = CASES["dit"].run(CASES["dit"].make(), steps=2)
    out, report = generated("dit", SVG2(dense_steps=0.0), steps=2)
    assert torch.equal(out, expected)
    assert "no gain predicted at 16 tokens (0.0" in report.decisions[0].reason
    assert report.decisions[0].scores_skipped == 0
    assert report.decisions[0].scores_run > 0
    assert "no gain predicted" in report.warnings[0]
    _, report = generated("dit", SVG2(dense_steps=0.0, min_tokens=17), steps=1)
    assert report.decisions[0].reason.startswith("16 tokens are fewer than 17")


def test_a_mask_of_more_than_padding_stays_dense_with_its_reason() -> None:
    case = CASES["chroma"]
    out, report = generated("chroma", Jenga(block=2, **ON), steps=2)
    assert torch.equal(out, case.run(case.make(), steps=2))
    assert not report.engaged
    assert "its mask has a row for each query" in report.decisions[0].reason


def test_gradients_keep_attention_dense_with_their_reason() -> None:
    case = CASES["dit"]
    pipe = case.make()
    handle = accel.patch(pipe, SVG2(**CLUSTERED))
    model = case.denoiser(pipe)
    hidden = torch.randn(1, 4, 8, 8, requires_grad=True)
    with handle.generation(1):
        model(hidden, timestep=torch.tensor([3]), class_labels=torch.tensor([1]))[
            0
        ].sum().backward()
        handle.advance()
    assert hidden.grad is not None
    assert "gradients are asked for" in handle.report.decisions[0].reason


def test_a_single_frame_stays_dense_under_radial() -> None:
    _, report = generated("dit", Radial(block=2, **ON), steps=1)
    assert "there is one frame only (4 modules)" in report.decisions[0].reason


def test_two_sparse_methods_conflict() -> None:
    with pytest.raises(ConflictError, match="replaces the attention"):
        accel.patch(CASES["dit"].make(), SVG2(), SpargeAttn())


def test_a_backend_asked_for_that_cannot_ends_the_generation_with_its_reason() -> None:
    with pytest.raises(AccelUnsupportedError, match="'xformers' was asked for"):
        generated("dit", SVG2(backend="xformers", **CLUSTERED), steps=1)


def test_the_reference_gives_what_the_default_does() -> None:
    first, _ = generated("wan", SVG2(**CLUSTERED), steps=2)
    second, _ = generated("wan", SVG2(backend="reference", **CLUSTERED), steps=2)
    torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-4)


class Failing:
    """A backend whose launch fails, as one with a broken driver would."""

    name = "reference"
    launches = 0

    def refuses(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
        return None

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Plan, *, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        type(self).launches += 1
        raise RuntimeError("no kernel image is available")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    import sparse_attn.backends.reference as module

    Failing.launches = 0
    monkeypatch.setattr(module, "ReferenceBackend", Failing)
    return Failing


def test_a_failed_launch_falls_back_once_and_is_reported(failing: type[Failing]) -> None:
    expected, _ = generated("wan", SVG2(**CLUSTERED), steps=2)
    out, report = generated("wan", SVG2(backend="reference", **CLUSTERED), steps=2)
    assert torch.equal(out, expected)
    assert failing.launches == 1
    assert report.warnings == (
        "reference failed (RuntimeError: no kernel image is available); it was not tried again",
    )


def test_where_no_backend_is_left_attention_is_dense(
    failing: type[Failing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_CPU", ("reference",))
    case = CASES["dit"]
    out, report = generated("dit", SVG2(**CLUSTERED), steps=2)
    assert torch.equal(out, case.run(case.make(), steps=2))
    first, second = (decision.reason for decision in report.decisions)
    assert "no backend is left" in first
    assert "reference failed" in second
    assert failing.launches == 1


def test_the_error_that_was_sampled_is_reported() -> None:
    _, report = generated("wan", SVG2(**{**CLUSTERED, "error": 0.05}), steps=3)
    errors = [decision.error for decision in report.decisions]
    # Either branch looks at the first evaluation, then not for five.
    assert [error is not None for error in errors] == [True, True, False, False, False, False]
    assert report.estimated_error == max(error for error in errors if error is not None)
