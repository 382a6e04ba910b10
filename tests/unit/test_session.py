"""Branches, busy denoisers, and state that ends with its generation."""

import threading
from contextlib import ExitStack

import pytest
import torch

import accel
from accel.clock import Clock
from accel.errors import AccelBusyError
from accel.report import Timeline
from accel.session import Generation, Session
from tests.unit.toys import Chain, drive, ones


def generation(clock=None):
    return Generation(clock or Clock(), Timeline("Toy", (), 0))


def branches(calls, clock, gen):
    """Returns the branch of every (conditioning, advance) in turn."""
    found = []
    for conditioning, advance in calls:
        found.append(gen._branches.find(gen.context_name, conditioning))
        if advance:
            clock.advance()
    return found


A, B = torch.zeros(1), torch.zeros(1)


def test_conditioning_tells_branches_apart_when_guidance_comes_and_goes():
    clock = Clock()
    gen = generation(clock)
    # Both, then only B, then both in the other order: order alone would mix them up.
    calls = [(A, False), (B, True), (B, True), (B, False), (A, True)]
    assert branches(calls, clock, gen) == ["0", "1", "1", "1", "0"]


def test_a_branch_that_starts_late_gets_its_own_name_even_if_it_comes_first():
    clock = Clock()
    calls = [(A, True), (A, True), (B, False), (A, True), (B, False), (A, True)]
    assert branches(calls, clock, generation(clock)) == ["0", "0", "1", "0", "1", "0"]


def test_order_decides_where_the_conditioning_is_made_anew_at_every_step():
    clock = Clock()
    calls = [(torch.zeros(1), last) for _ in range(3) for last in (False, True)]
    assert branches(calls, clock, generation(clock)) == ["0", "1"] * 3


def test_the_pipelines_names_win():
    gen = generation()
    session = Session("Toy", None)
    session.generation = gen
    with session.context("uncond"):
        assert gen._branches.find(gen.context_name, A) == "uncond"
    assert gen.context_name is None


def test_a_name_that_repeats_moves_an_unseen_schedule_on():
    clock = Clock()
    gen = generation(clock)
    for _ in range(3):
        for name in ("cond", "uncond"):
            gen._branches.find(name, None)
    assert clock.step == 2


def test_a_second_thread_waits_for_the_denoiser():
    session, order = Session("Toy", None), []
    started, release = threading.Event(), threading.Event()

    def first():
        with session.open(Clock(), Timeline("Toy", (), 0)):
            started.set()
            release.wait(5)
            order.append("first")

    def second():
        started.wait(5)
        with session.open(Clock(), Timeline("Toy", (), 0)):
            order.append("second")

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    started.wait(5)
    release.set()
    for thread in threads:
        thread.join(5)
    assert order == ["first", "second"]


def test_a_second_thread_is_refused_where_waiting_is_off():
    model = Chain(2, 3, 5)
    handle = accel.patch(model, "fast")
    handle.wait = False
    errors = []

    def other():
        try:
            with handle.generation(1):
                pass
        except AccelBusyError as error:
            errors.append(str(error))

    with handle.generation(1):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(5)
    assert len(errors) == 1
    assert "Chain" in errors[0]


def _fill_and_fail(generation):
    generation.state((1, "", "0"), list).append("kept")
    raise KeyboardInterrupt


def test_state_ends_with_its_generation_even_after_an_error():
    session = Session("Toy", None)
    with pytest.raises(KeyboardInterrupt), session.open(Clock(), Timeline("Toy", (), 0)) as gen:
        _fill_and_fail(gen)
    assert session.generation is None
    assert gen._states == {}


def test_a_nested_generation_gives_the_outer_one_back():
    session = Session("Toy", None)
    with ExitStack() as stack:
        outer = stack.enter_context(session.open(Clock(), Timeline("Toy", (), 0)))
        with session.open(Clock(), Timeline("Toy", (), 0)) as inner:
            assert session.generation is inner
        assert session.generation is outer


def test_advance_outside_of_a_generation_says_how():
    handle = accel.patch(Chain(2, 3), "fast")
    with pytest.raises(accel.OptionError, match="generation"):
        handle.advance()


def test_a_bare_denoiser_outside_of_a_generation_is_untouched():
    model = Chain(2, 3, 5)
    handle = accel.patch(model, "fast")
    drive(model, handle, ones(1))
    assert float(model(ones(1)[0])) == 30
    assert len(handle.reports) == 1
