"""Where kept features lie: never more on the device than the budget, the same bits when asked."""

import random
import weakref

import pytest
import torch

from accel.sites import Streams
from accel.store import CudaSwap, Store
from tests.unit.late_swap import LateSwap

LANE = (0, "cond")
CPU = torch.device("cpu")


def filled(value, floats=4):
    return Streams(torch.full((floats,), float(value)))


def late(budget=None):
    store, swap = Store(budget, swaps=True), LateSwap()
    store._ways[CPU] = swap
    return store, swap


def test_what_is_swapped_leaves_the_device_and_comes_back_bit_by_bit():
    store = Store(None, swaps=True)
    hidden, context = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    expected = hidden.clone(), context.clone()
    gone = weakref.ref(hidden)
    kept = store.put(LANE, "here", Streams(hidden, context))
    assert (store.on_device, store.on_host) == (0, (30 + 24) * 4)
    del hidden
    assert gone() is None
    assert torch.equal(kept.hidden, expected[0])
    assert torch.equal(kept.context, expected[1])
    assert store.on_device == (30 + 24) * 4


def test_a_tensors_layout_survives_the_way_to_the_host_and_back():
    hidden = torch.randn(1, 4, 6, 6).to(memory_format=torch.channels_last)
    kept = Store(None, swaps=True).put(LANE, "here", Streams(hidden))
    assert kept.hidden.stride() == hidden.stride()


def test_shape_and_size_are_known_without_fetching():
    store = Store(None, swaps=True)
    like = Streams(torch.ones(2, 3), torch.ones(4))
    kept = store.put(LANE, "here", Streams(torch.zeros(2, 3), torch.zeros(4)))
    assert kept.matches(like)
    assert like.matches(kept)
    assert kept.like(like.hidden)
    assert not kept.like(torch.ones(3, 2))
    assert not kept.matches(Streams(torch.ones(2, 3)))
    assert (kept.shape, kept.nbytes) == (torch.Size([2, 3]), 40)
    assert store.on_device == 0


def test_nothing_is_used_before_its_copies_have_ended():
    store, _ = late()
    kept = [store.put(LANE, f"place {place}", filled(place)) for place in range(3)]
    for _ in range(2):
        for place in range(3):
            assert torch.equal(kept[place].hidden, torch.full((4,), float(place)))


def test_what_others_write_into_is_kept_as_it_was():
    store, _ = late()
    theirs = torch.ones(4)
    kept = store.put(LANE, "here", Streams(theirs), shared=True)
    theirs.zero_()
    assert torch.equal(kept.hidden, torch.ones(4))


def test_what_the_borrower_writes_into_is_fetched_anew():
    store, swap = late(budget=100)
    kept = store.put(LANE, "here", filled(1))
    versions = kept.versions
    kept.hidden.zero_()
    assert torch.equal(kept.hidden, torch.ones(4))
    assert kept.versions == versions
    assert swap.log == ["out", "back"]


def test_without_swapping_what_somebody_wrote_into_shows():
    kept = Store(100, swaps=False).put(LANE, "here", filled(1))
    versions = kept.versions
    kept.hidden.zero_()
    assert kept.versions != versions


def test_the_next_place_is_fetched_with_the_one_that_is_used():
    store, swap = late()
    kept = [store.put(LANE, f"place {place}", filled(place)) for place in range(4)]
    assert swap.log == ["out"] * 4
    swap.log.clear()
    assert kept[0].hidden is not None
    assert swap.log == ["back", "back"]
    assert kept[1].hidden is not None
    assert swap.log == ["back"] * 3
    # The one that was used and the one ahead.
    assert store.on_device == 2 * 16


def test_every_sample_of_a_place_is_fetched_with_it():
    store, swap = late()
    kept = [
        store.put(LANE, f"place {place}", filled(value)) for value in range(2) for place in range(2)
    ]
    swap.log.clear()
    assert kept[0].hidden is not None
    assert swap.log == ["back"] * 4
    assert kept[2].hidden is not None
    assert swap.log == ["back"] * 4


def test_a_call_that_will_reuse_has_the_first_place_of_its_branch_fetched():
    store, swap = late()
    kept = [
        store.put((0, branch), f"place {place}", filled(place))
        for branch in ("cond", "uncond")
        for place in range(2)
    ]
    swap.log.clear()
    store.expect((0, "another"), reuse=True)
    assert swap.log == []
    store.expect((0, "uncond"), reuse=True)
    assert swap.log == ["back"]
    assert torch.equal(kept[2].hidden, torch.zeros(4))
    # A call that computes has no use for what lies ready.
    store.expect((0, "uncond"), reuse=False)
    assert store.on_device == 0


def test_within_the_budget_features_stay_and_beyond_it_they_go():
    store = Store(40, swaps=True)
    kept = [store.put(LANE, f"place {place}", filled(place)) for place in range(4)]
    assert (store.on_device, store.most_on_device, store.on_host) == (32, 32, 64)
    for _ in range(3):
        for place in range(4):
            assert torch.equal(kept[place].hidden, torch.full((4,), float(place)))
            assert store.on_device <= 40
    assert store.most_on_device == 32
    store.expect(LANE, reuse=False)
    assert store.on_device == 32


def test_without_swapping_what_does_not_fit_is_refused_by_name_and_size():
    store = Store(40, swaps=False)
    kept = [store.put(LANE, f"place {place}", filled(place)) for place in range(3)]
    assert kept[2] is None
    assert store.refused == {0: {"place 2": 16}}
    assert store.on_device == 32
    del kept[0]
    assert store.on_device == 16
    assert store.put(LANE, "place 2", filled(2)) is not None


def test_what_is_larger_than_the_budget_is_refused_even_with_swapping():
    store = Store(40, swaps=True)
    assert store.put(LANE, "large", filled(1, floats=11)) is None
    assert (store.refused, store.on_host) == ({0: {"large": 44}}, 0)


def test_what_always_stays_leaves_room_for_the_largest_that_comes_and_goes():
    store = Store(40, swaps=True)
    large = store.put(LANE, "large", filled(1, floats=6))
    assert store.put(LANE, "too much", filled(2, floats=5), stays=True) is None
    stays = store.put(LANE, "stays", filled(2, floats=4), stays=True)
    assert store.put(LANE, "too large", filled(1, floats=7)) is None
    assert torch.equal(large.hidden, torch.ones(6))
    assert torch.equal(stays.hidden, torch.full((4,), 2.0))
    assert store.most_on_device == 40


def test_a_view_counts_with_all_that_it_keeps_alive():
    store = Store(100, swaps=False)
    assert store.put(LANE, "part", Streams(torch.zeros(100)[:2])) is None
    both = store.put(LANE, "part", Streams(*torch.zeros(20).chunk(2)))
    assert store.on_device == 80
    assert both.nbytes == 80


def test_what_nobody_holds_any_more_is_forgotten():
    store = Store(100, swaps=True)
    kept = [store.put(LANE, "here", filled(1)), store.put(LANE, "stays", filled(1), stays=True)]
    again = store.put(LANE, "here", kept[0])
    assert again is kept[0]
    assert (store.on_device, store.on_host) == (32, 16)
    del again
    kept.clear()
    assert (store.on_device, store.on_host) == (0, 0)
    assert not any(row.entries for rows in store._rows.values() for row in rows.values())


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_no_order_of_use_exceeds_the_budget_or_changes_a_bit(seed, swaps):
    chance, budget = random.Random(seed), 400
    store, swap = Store(budget, swaps=swaps), LateSwap()
    store._ways[CPU] = swap
    kept = {}
    for turn in range(300):
        place = chance.randrange(12)
        if chance.random() < 0.4:
            kept.pop(place, None)
            streams = filled(turn, chance.randrange(1, 40))
            stays = chance.random() < 0.1
            found = store.put(LANE, f"place {place}", streams, stays=stays)
            if found is not None:
                kept[place] = (found, turn)
        elif place in kept:
            found, value = kept[place]
            assert found.hidden.unique().tolist() == [value]
        store.expect(LANE, reuse=chance.random() < 0.5)
        entries = [found._entry for found, _ in kept.values()]
        held = sum(t.nbytes for entry in entries for t in entry.device or ())
        assert store.on_device == held <= budget
        assert store.on_host == sum(t.nbytes for entry in entries for t in entry.host or ())
    assert kept


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [None, 3 * 2**22])
def test_on_a_device_copies_run_beside_other_work_and_change_nothing(budget):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    expected = [torch.full((2**20,), float(place), device=device) for place in range(6)]
    # Pinned memory that is had for the first time may wait for the device.
    pinned = [torch.empty(2**20, pin_memory=True) for _ in range(12)]
    del pinned
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(device)
    # A second of work is queued before the copies; nothing here waits for it.
    torch.cuda._sleep(1_000_000_000)
    done = torch.cuda.Event()
    done.record()
    store = Store(budget, swaps=True)
    kept = [
        store.put(LANE, f"place {place}", Streams(feature.clone()), shared=place % 2 == 0)
        for place, feature in enumerate(expected)
    ]
    wrong = torch.zeros((), device=device)
    for _ in range(2):
        for each, feature in zip(kept, expected, strict=True):
            wrong += (each.hidden - feature).abs().sum()
    assert not done.query()
    torch.cuda.synchronize()
    assert float(wrong) == 0
    assert all(host.is_pinned() for each in kept for host in each._entry.host)
    assert isinstance(store._ways[device], CudaSwap)
    # The allocator looks at what has ended when it is asked for more.
    torch.empty(2**24, device=device)
    most = 2 * 2**22 if budget is None else budget
    assert torch.cuda.memory_allocated(device) - before <= most + 2**16
