"""The clock counts what the scheduler does and reads no timestep."""

from contextlib import ExitStack
from typing import ClassVar

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    UniPCMultistepScheduler,
)

import accel
from accel.clock import Clock, noise_levels, trained_times
from accel.method import Binding
from tests.tiny import CASES

X = torch.zeros(1, 4, 2, 2)


def run(scheduler, steps, clock, start=0):
    scheduler.set_timesteps(steps)
    if start:
        scheduler.set_begin_index(start)
    seen = []
    for t in scheduler.timesteps[start:]:
        clock.settle()
        seen.append((clock.step, clock.num_steps, clock.sigma))
        scheduler.step(X, t, X)
    return seen


@pytest.mark.parametrize(
    ("scheduler", "evaluations"),
    [
        (FlowMatchEulerDiscreteScheduler(), 6),
        (DDIMScheduler(), 6),
        (UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction"), 6),
        (FlowMatchHeunDiscreteScheduler(), 11),
    ],
)
def test_every_evaluation_is_counted_and_announced(scheduler, evaluations):
    clock = Clock()
    before = dict(scheduler.__dict__)
    with ExitStack() as stack:
        clock.watch(scheduler, stack)
        seen = run(scheduler, 6, clock)
    assert [step for step, _, _ in seen] == list(range(evaluations))
    assert {count for _, count, _ in seen} == {evaluations}
    sigmas = [sigma for _, _, sigma in seen]
    assert sigmas == sorted(sigmas, reverse=True)
    assert set(scheduler.__dict__) - set(before) <= {"timesteps", "sigmas"} | set(
        scheduler.__dict__
    )
    assert "step" not in scheduler.__dict__
    assert "set_timesteps" not in scheduler.__dict__


def test_flow_sigmas_are_those_of_the_scheduler():
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(4)
    assert noise_levels(scheduler) == pytest.approx(scheduler.sigmas[:4].tolist())


def test_ddim_noise_levels_follow_from_its_alphas():
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(4)
    a = scheduler.alphas_cumprod[scheduler.timesteps[0]]
    assert noise_levels(scheduler)[0] == pytest.approx(float(((1 - a) / a) ** 0.5))


def test_a_late_start_counts_what_is_left_and_places_it_on_the_schedule():
    clock, scheduler = Clock(), FlowMatchEulerDiscreteScheduler()
    with ExitStack() as stack:
        clock.watch(scheduler, stack)
        seen = run(scheduler, 10, clock, start=7)
    assert [(step, count) for step, count, _ in seen] == [(0, 3), (1, 3), (2, 3)]
    assert seen[0][2] == pytest.approx(float(scheduler.sigmas[7]))


def test_the_pipelines_own_count_wins_where_the_scheduler_cannot_tell():
    clock, scheduler = Clock(known_num_steps=lambda: 3), DDIMScheduler()
    with ExitStack() as stack:
        clock.watch(scheduler, stack)
        scheduler.set_timesteps(10)
        clock.settle()
    assert clock.num_steps == 3


@pytest.mark.parametrize("scheduler", [DDIMScheduler(), EulerDiscreteScheduler()])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_where_nobody_tells_the_first_timestep_says_which_end_was_cut(scheduler, scale):
    for start, late in ((0, False), (7, True)):
        clock = Clock(known_num_steps=lambda: 3)
        with ExitStack() as stack:
            clock.watch(scheduler, stack)
            scheduler.set_timesteps(10)
            clock.settle((scheduler.timesteps[start] * scale).expand(2))
        assert clock.num_steps == 3
        assert clock.starts_late is late
        assert clock.sigma == pytest.approx(noise_levels(scheduler)[start])


class Places(accel.Method):
    """Notes where on the schedule every evaluation is, in the class."""

    seen: ClassVar[list[float | None]] = []

    def neutral(self):
        return self

    def bind(self, model):
        yield Binding(model.denoiser, self.note)

    def note(self, call):
        self.seen.append(call.time)
        return call.proceed()


def test_a_base_model_that_stops_early_starts_at_the_start():
    case = CASES["sdxl"]
    pipe = case.make()
    Places.seen.clear()
    with accel.patch(pipe, Places()):
        case.run(pipe, steps=6)
        whole = list(Places.seen)
        Places.seen.clear()
        case.run(pipe, steps=6, denoising_end=0.5)
    assert len(whole) == 6
    assert Places.seen == whole[: len(Places.seen)]
    assert len(Places.seen) == 3


@pytest.mark.parametrize(
    "scheduler",
    [DDIMScheduler(), FlowMatchEulerDiscreteScheduler(), FlowMatchHeunDiscreteScheduler()],
)
@pytest.mark.parametrize("as_tuple", [True, False])
def test_listeners_see_the_latents_of_every_step_and_may_write_into_them(scheduler, as_tuple):
    clock, seen = Clock(), []

    def listen(which, sample, latents):
        seen.append((which.step, float(sample.sum())))
        latents.fill_(which.step)

    clock.after_step.append(listen)
    with ExitStack() as stack:
        clock.watch(scheduler, stack)
        scheduler.set_timesteps(3)
        latents = X
        for t in scheduler.timesteps:
            output = scheduler.step(X, t, sample=latents, return_dict=not as_tuple)
            latents = output[0] if as_tuple else output.prev_sample
    count = len(scheduler.timesteps)
    # Each listener call sees what the one before left: 16 numbers of the number of the step.
    assert seen == [(step + 1, 16.0 * step) for step in range(count)]
    assert clock.scheduler is scheduler


def test_only_a_generation_that_leaves_out_the_start_starts_late():
    for start, late in ((0, False), (3, True)):
        clock, scheduler = Clock(), FlowMatchEulerDiscreteScheduler()
        with ExitStack() as stack:
            clock.watch(scheduler, stack)
            run(scheduler, 5, clock, start=start)
        assert clock.starts_late is late


def test_signatures_that_pipelines_inspect_stay():
    import inspect

    scheduler = FlowMatchEulerDiscreteScheduler()
    before = inspect.signature(scheduler.set_timesteps)
    with ExitStack() as stack:
        Clock().watch(scheduler, stack)
        assert inspect.signature(scheduler.set_timesteps) == before


def test_a_scheduler_copied_meanwhile_is_not_wrapped():
    import copy

    clock, scheduler = Clock(), FlowMatchEulerDiscreteScheduler()
    with ExitStack() as stack:
        clock.watch(scheduler, stack)
        run(copy.deepcopy(scheduler), 4, Clock())
    assert clock.step == 0


def places(scheduler, steps):
    scheduler.set_timesteps(steps)
    return trained_times(scheduler, noise_levels(scheduler))


@pytest.mark.parametrize(
    "scheduler",
    [
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        DDIMScheduler(steps_offset=1),
        UniPCMultistepScheduler(),
        EulerDiscreteScheduler(),
    ],
)
def test_the_place_on_the_schedule_is_the_timestep_as_a_share_of_the_trained_ones(scheduler):
    found = places(scheduler, 7)
    assert found == pytest.approx([t / 1000 for t in scheduler.timesteps.tolist()])


def test_where_timesteps_are_logarithms_the_ratio_of_noise_to_signal_tells_the_place():
    scheduler = EDMEulerScheduler()
    found = places(scheduler, 5)
    assert min(scheduler.timesteps) < 0
    expected = [sigma / (1 + sigma) for sigma in scheduler.sigmas[:5].tolist()]
    assert found == pytest.approx(expected)


def test_a_late_start_has_the_places_of_what_is_left():
    clock, scheduler = Clock(), FlowMatchEulerDiscreteScheduler()
    with ExitStack() as stack:
        clock.watch(scheduler, stack)
        scheduler.set_timesteps(10)
        scheduler.set_begin_index(7)
        clock.settle()
        assert clock.time == pytest.approx(float(scheduler.timesteps[7]) / 1000)
        clock.advance()
        clock.advance()
        clock.advance()
        assert clock.time is None


def test_without_a_scheduler_evaluations_are_evenly_spaced():
    clock = Clock(num_steps=4)
    assert clock.time == 1
    clock.advance()
    assert clock.time == 0.75
    assert Clock().time is None


@pytest.mark.parametrize("named", [True, False])
def test_what_the_scheduler_was_handed_is_known_until_the_end(named):
    clock, scheduler = Clock(), FlowMatchEulerDiscreteScheduler()
    guess = X + 1
    with ExitStack() as stack:
        clock.watch(scheduler, stack)
        scheduler.set_timesteps(2)
        if named:
            scheduler.step(model_output=guess, timestep=scheduler.timesteps[0], sample=X)
        else:
            scheduler.step(guess, scheduler.timesteps[0], X)
        assert clock.prediction is guess
    assert clock.prediction is None
