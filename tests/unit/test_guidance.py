"""The guidance cache on a pipeline whose predictions can be computed by hand."""

import pytest
import torch

import accel
from caching import FasterCache
from tests.unit.guided import CHECKS, MiniPipe, Painter

ALWAYS = {"interval": 1, "warmup": 1, "tail": 0, "min_steps": 0, "guidance_start": 1.0}
METHOD = FasterCache(guidance_interval=4, **ALWAYS)


def patched(pipe, method=METHOD):
    """Returns the handle after a first generation, in whose first call the model is probed."""
    handle = accel.patch(pipe, method)
    pipe()
    return handle


def rebuilt(handle, branch=None):
    """Returns the steps at which the unconditional prediction was rebuilt."""
    return [
        decision.step
        for decision in handle.report.decisions
        if decision.action == "reused" and branch in (None, decision.branch)
    ]


@pytest.mark.parametrize("order", ["uc", "cu"])
def test_in_one_batch_only_the_conditional_half_runs_whichever_it_is(order):
    pipe = MiniPipe(Painter(), order)
    handle = patched(pipe)
    pipe()
    # Step 0 shows the order, step 1 gives the first difference; then three in four are rebuilt.
    assert rebuilt(handle) == [2, 3, 4, 6, 7, 8, 10, 11]
    assert pipe.transformer.rows == [1 if step in rebuilt(handle) else 2 for step in range(12)]
    for step, found in enumerate(pipe.seen):
        torch.testing.assert_close(found["c"], pipe.inputs[step] + 1)
        if step not in rebuilt(handle):
            torch.testing.assert_close(found["u"], pipe.inputs[step])


@pytest.mark.parametrize("named", [True, False])
def test_in_two_calls_the_second_is_answered_without_running(named):
    pipe = MiniPipe(Painter(), "cu", batched=False, named=named)
    handle = patched(pipe)
    pipe()
    # Names tell the order from the start.
    steps = [1, 2, 3, 5, 6, 7, 9, 10, 11] if named else [2, 3, 4, 6, 7, 8, 10, 11]
    assert rebuilt(handle) == steps
    assert len(pipe.transformer.rows) == 24 - len(steps)
    branches = {d.branch for d in handle.report.decisions if d.action == "reused"}
    assert branches == ({"uncond"} if named else {"1"})
    for step, found in enumerate(pipe.seen):
        torch.testing.assert_close(found["c"], pipe.inputs[step] + 1)


@pytest.mark.parametrize("named", [True, False])
def test_an_unconditional_call_that_comes_first_runs_and_the_report_says_why(named):
    pipe = MiniPipe(Painter(), "uc", batched=False, named=named)
    handle = patched(pipe)
    expected = pipe()
    handle.unpatch()
    assert torch.equal(pipe(), expected)
    assert rebuilt(handle) == []
    assert any("unconditional call comes first" in text for text in handle.report.warnings)
    reasons = [d.reason for d in handle.report.decisions if d.step > 1]
    assert any("comes first" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("pattern", "factor"),
    [
        # A constant is of low frequency: 1.1 between 0.099 and 0.901.
        (None, lambda time: 1.1 if 0.099 < time < 0.901 else 1.0),
        # Checks are of the highest: 1.1 below 0.301.
        (CHECKS, lambda time: 1.1 if time < 0.301 else 1.0),
    ],
)
@pytest.mark.parametrize("batched", [True, False])
def test_a_rebuilt_prediction_is_the_conditional_one_and_the_weighted_difference(
    batched, pattern, factor
):
    painter = Painter(pattern)
    pipe = MiniPipe(painter, "uc" if batched else "cu", batched=batched)
    handle = patched(pipe)
    pipe()
    times = [timestep / 1000 for timestep in pipe.scheduler.timesteps.tolist()]
    assert {factor(times[step]) for step in rebuilt(handle)} == {1.0, 1.1}
    for step in rebuilt(handle):
        added = pipe.seen[step]["u"] - pipe.seen[step]["c"]
        torch.testing.assert_close(
            added, (-factor(times[step]) * painter.pattern).expand_as(added), atol=1e-5, rtol=0
        )


def test_factors_can_be_chosen():
    pipe = MiniPipe(Painter())
    handle = patched(pipe, FasterCache(guidance_interval=4, low_weight=2.0, **ALWAYS))
    pipe()
    added = pipe.seen[4]["u"] - pipe.seen[4]["c"]
    torch.testing.assert_close(added, torch.full_like(added, -2.0), atol=1e-5, rtol=0)
    assert 4 in rebuilt(handle)


def test_the_cache_begins_at_its_place_on_the_schedule_and_spares_the_last_steps():
    pipe = MiniPipe(Painter())
    method = FasterCache(guidance_interval=100, **ALWAYS | {"guidance_start": 0.5, "tail": 2})
    handle = patched(pipe, method)
    pipe()
    times = [timestep / 1000 for timestep in pipe.scheduler.timesteps.tolist()]
    assert rebuilt(handle) == [step for step in range(10) if times[step] < 0.5]
    reasons = [decision.reason for decision in handle.report.decisions]
    assert reasons[2].startswith("guidance cache not begun")
    assert reasons[11].startswith("last steps")


@pytest.mark.parametrize("batched", [True, False])
def test_without_guidance_nothing_is_rebuilt_and_nothing_is_amiss(batched):
    pipe = MiniPipe(Painter(), "c", batched=batched)
    handle = patched(pipe)
    expected = pipe()
    assert rebuilt(handle) == []
    assert not any("guidance" in text for text in handle.report.warnings)
    handle.unpatch()
    assert torch.equal(pipe(), expected)


@pytest.mark.parametrize("batched", [True, False])
def test_guidance_on_only_some_steps_is_rebuilt_from_recent_differences_alone(batched):
    pipe = MiniPipe(Painter(), "uc" if batched else "cu", batched=batched)
    handle = patched(pipe)
    pipe(num_inference_steps=16, guided=lambda step: not 4 <= step < 9)
    # The difference of step 1 is too old at step 9, which computes.
    assert rebuilt(handle) == [2, 3, 10, 11, 12, 14, 15]
    for step in range(4, 9):
        torch.testing.assert_close(pipe.seen[step]["c"], pipe.inputs[step] + 1)


def test_guidance_that_sets_in_late_is_learned_then():
    pipe = MiniPipe(Painter())
    handle = patched(pipe)
    pipe(guided=lambda step: step >= 5)
    assert rebuilt(handle) == [7, 8, 9, 11]


def test_two_prompts_in_a_batch_are_not_taken_for_guidance():
    painter = Painter()
    pipe = MiniPipe(painter, "c")
    pipe.text["c"] = torch.tensor([[1.0], [2.0]])

    def predict(latents, order):
        del order
        (out,) = painter(latents.expand(2, -1, -1, -1), pipe.text["c"])
        return {"c": out}

    pipe.predict = predict
    handle = patched(pipe)
    pipe()
    assert rebuilt(handle) == []
    assert set(painter.rows) == {2}


def test_a_mixture_that_is_no_guidance_is_left_alone_and_that_is_said():
    pipe = MiniPipe(Painter(), guide=lambda u, c: (u + c) / 2)
    handle = patched(pipe)
    pipe()
    assert rebuilt(handle) == []
    assert any("unconditional is not known" in text for text in handle.report.warnings)
    assert "not known" in handle.report.decisions[4].reason


class Third(MiniPipe):
    """Makes another, perturbed call after the two."""

    def predict(self, latents, order):
        found = super().predict(latents, order)
        with self.transformer.cache_context("perturbed") if self.named else torch.no_grad():
            self.transformer(latents, torch.full((1, 1), 5.0))
        return found


@pytest.mark.parametrize("named", [True, False])
def test_a_third_call_is_left_alone_and_unnamed_calls_then_are_not_guessed(named):
    pipe = Third(Painter(), "cu", batched=False, named=named)
    handle = patched(pipe)
    pipe()
    assert bool(rebuilt(handle, "uncond")) is named
    assert rebuilt(handle, "perturbed") == []
    assert any("3 calls" in text for text in handle.report.warnings) is not named


class Chatty(Painter):
    """Returns a second tensor."""

    def forward(self, hidden_states, encoder_hidden_states):
        out = super().forward(hidden_states, encoder_hidden_states)
        return (*out, hidden_states)


class Listening(MiniPipe):
    def predict(self, latents, order):
        out, _ = self.transformer(
            torch.cat([latents] * 2), torch.cat([self.text[key] for key in order])
        )
        return dict(zip(order, out.chunk(2), strict=True))


def test_a_denoiser_that_returns_more_than_its_prediction_is_not_answered_for():
    pipe = Listening(Chatty())
    handle = patched(pipe)
    pipe()
    assert rebuilt(handle) == []
    assert any("single tensor" in text for text in handle.report.warnings)


class Tokens(Painter):
    """Takes and returns tokens, without saying how they lie."""

    def forward(self, hidden_states, encoder_hidden_states):
        (out,) = super().forward(hidden_states.view(-1, 1, 10, 10), encoder_hidden_states)
        return (out.view(-1, 100, 1),)


class Flat(MiniPipe):
    def predict(self, latents, order):
        found = super().predict(latents.view(1, 100, 1), order)
        return {key: value.view(1, 1, 10, 10) for key, value in found.items()}


def test_tokens_of_unknown_places_are_computed_and_the_report_says_why():
    pipe = Flat(Tokens(), "cu", batched=False, named=True)
    handle = patched(pipe)
    pipe()
    assert rebuilt(handle) == []
    assert "how the tokens lie is unknown" in handle.report.decisions[-1].reason


def test_a_non_finite_difference_is_never_used():
    painter = Painter()
    pipe = MiniPipe(painter, "cu", batched=False, named=True)
    handle = patched(pipe)
    pipe.text["u"] = torch.full((1, 1), float("nan"))
    pipe.guide = lambda u, c: c
    pipe()
    assert rebuilt(handle) == []


def test_parts_are_counted_for_rebuilt_predictions():
    pipe = MiniPipe(Painter(), "cu", batched=False, named=True)
    handle = patched(pipe)
    pipe(num_inference_steps=4)
    # Both blocks of four conditional calls and of the one unconditional call.
    assert (handle.report.blocks_run, handle.report.blocks_skipped) == (10, 6)
    assert (handle.report.modules_run, handle.report.modules_skipped) == (10, 6)
    pipe = MiniPipe(Painter())
    handle = patched(pipe)
    pipe(num_inference_steps=4)
    # Half of a batch counts half.
    assert (handle.report.blocks_run, handle.report.blocks_skipped) == (6, 2)


def test_bytes_of_the_difference_and_its_parts_are_reported():
    pipe = MiniPipe(Painter())
    handle = patched(pipe)
    pipe()
    assert handle.report.bytes_held == 3 * 100 * 4


def test_the_unconditional_half_is_never_run_by_attention_that_kept_it():
    # Attention at every other step, guidance at every fourth: halves of outputs must fit.
    pipe = MiniPipe(Painter(attn=0.5))
    method = FasterCache(guidance_interval=4, weight=0.0, **{**ALWAYS, "interval": 2, "start": 1.0})
    handle = patched(pipe, method)
    assert torch.isfinite(pipe()).all()
    actions = [decision.action for decision in handle.report.decisions]
    assert {"forecast", "reused"} <= set(actions)


@pytest.mark.parametrize("batched", [True, False])
def test_a_difference_is_measured_without_extrapolated_attention(batched):
    pipe = MiniPipe(Painter(attn=0.5), "uc" if batched else "cu", batched=batched)
    method = FasterCache(guidance_interval=4, **{**ALWAYS, "interval": 3, "start": 1.0})
    handle = patched(pipe, method)
    pipe()
    measured = [d for d in handle.report.decisions if "guidance interval over" in d.reason]
    steps = {decision.step for decision in measured}
    assert steps == {5, 9}
    both = [d for d in handle.report.decisions if d.step in steps]
    assert all(decision.modules_skipped == 0 for decision in both)
    assert {decision.action for decision in both} == {"computed"}
    assert any(decision.action == "forecast" for decision in handle.report.decisions)


class Overwriting(MiniPipe):
    """Reuses the memory of the first prediction before it asks for the second."""

    def predict(self, latents, order):
        found = {}
        for key, name in zip(order, ("cond", "uncond"), strict=False):
            with self.transformer.cache_context(name):
                (out,) = self.transformer(latents, self.text[key])
            found[key] = out.clone()
            out.zero_()
        return found


def test_a_conditional_prediction_that_was_written_into_is_not_built_on():
    pipe = Overwriting(Painter(), "cu", batched=False, named=True)
    handle = patched(pipe)
    expected = pipe()
    assert rebuilt(handle) == []
    assert "not a tensor of its own" in handle.report.decisions[-1].reason
    handle.unpatch()
    assert torch.equal(pipe(), expected)


class Shrinking(MiniPipe):
    """Shows its denoiser a part of the picture from the fourth step on."""

    def predict(self, latents, order):
        width = 10 if len(self.inputs) < 4 else 6
        found = super().predict(latents[..., :width], order)
        return {key: torch.nn.functional.pad(part, (0, 10 - width)) for key, part in found.items()}


def test_a_change_of_size_within_a_generation_computes_a_new_difference():
    pipe = Shrinking(Painter(torch.ones(1, 1)))
    handle = patched(pipe)
    pipe()
    assert rebuilt(handle) == [2, 4, 5, 6, 8, 9, 10]
    assert handle.report.decisions[3].reason.startswith("no difference")
