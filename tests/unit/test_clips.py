"""Clips: what their captions say, where their frames show it, and how motion is read off again."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from accel.zoo.judge import Judge
from accel.zoo.scenes import GROUNDS, KINDS, RELATIONS, Item, parse
from accel.zoo.video.clips import (
    DIRECTIONS,
    FRAMES,
    MANNERS,
    Clip,
    Mover,
    parse_clip,
    random_clip,
    render_clip,
    sample_clips,
    track,
)
from accel.zoo.video.motion import Motion, centres, read_motion, steadiness
from accel.zoo.video.scoring import clip_figures
from tests.unit.drawn_garments import drawn_garments

__all__ = ["drawn_garments"]

BAG = Item("bag", "red", "large")
DRESS = Item("dress", "blue", "small")


def videos(clips: list[Clip], seed: int = 0) -> torch.Tensor:
    """The clips' frames, [B, F, 3, 64, 64] in 0..1."""
    rng = np.random.default_rng(seed)
    frames = np.stack([render_clip(clip, rng, "held_out")[0] for clip in clips])
    return torch.from_numpy(frames).permute(0, 1, 4, 2, 3)


def test_a_caption_says_who_moves_how() -> None:
    clip = Clip(
        (Mover(BAG, "moving quickly", "left"), Mover(DRESS, "bouncing", "right")), "navy", "above"
    )
    assert clip.caption() == (
        "a large red bag moving quickly left above a small blue dress bouncing right "
        "on a navy ground"
    )


def test_every_caption_parses_back_to_its_clip() -> None:
    rng = random.Random(0)
    for _ in range(500):
        clip = random_clip(rng)
        assert parse_clip(clip.caption()) == clip


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "a large red bag on a navy ground",
        "a large red bag moving left on a navy ground",
        "a large red bag moving slowly left on a navy",
        "a large red cat moving slowly left on a navy ground",
        "a large red bag moving slowly left on a black ground",
        "a large red bag moving slowly up above a small blue bag bouncing left on a navy ground",
    ],
)
def test_other_captions_are_refused_with_an_example(caption: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        parse_clip(caption)


def test_held_out_clips_are_fixed_distinct_and_disjoint_from_training() -> None:
    clips = sample_clips(128)
    assert clips == sample_clips(128)
    held_out = {clip.description() for clip in clips}
    assert len(held_out) == 128
    rng = random.Random(1)
    assert held_out.isdisjoint(random_clip(rng).description() for _ in range(3000))


def test_held_out_clips_use_every_word() -> None:
    clips = sample_clips(128)
    movers = [mover for clip in clips for mover in clip.movers]
    assert {mover.item.kind for mover in movers} == set(KINDS)
    assert {mover.direction for mover in movers} == set(DIRECTIONS)
    assert {mover.manner for mover in movers} == set(MANNERS)
    assert {clip.ground for clip in clips} == set(GROUNDS)
    assert {clip.relation for clip in clips} == {"", *RELATIONS}


def test_two_ways_of_saying_one_clip_share_a_description() -> None:
    one, other = Mover(BAG, "bouncing", "up"), Mover(DRESS, "moving slowly", "down")
    left = Clip((one, other), "grey", "to the left of")
    right = Clip((other, one), "grey", "to the right of")
    assert left.description() == right.description()
    assert left.is_held_out() == right.is_held_out()


@pytest.mark.parametrize("count", [0, 4097])
def test_clip_counts_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="4096"):
        sample_clips(count)


def test_a_clip_standing_still_is_a_scene() -> None:
    clip = parse_clip(
        "a large red bag moving slowly left above a small blue dress bouncing left on a mint ground"
    )
    assert clip.scene() == parse("a large red bag above a small blue dress on a mint ground")


@pytest.mark.parametrize("size", ["large", "small"])
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_paths_go_the_way_they_are_told_and_stay_inside(
    size: str, manner: str, direction: str
) -> None:
    side = {"large": 31, "small": 21}[size]
    mover = Mover(Item("bag", "red", size), manner, direction)
    axis, sign = {"up": (0, -1), "down": (0, 1), "left": (1, -1), "right": (1, 1)}[direction]
    for seed in range(20):
        path = track(mover, "whole", np.random.default_rng(seed))
        assert len(path) == FRAMES
        assert all(0 <= place <= 64 - side for corner in path for place in corner)
        assert len({corner[1 - axis] for corner in path}) == 1
        steps = [sign * (after[axis] - before[axis]) for before, after in pairwise(path)]
        if manner == "bouncing":
            turn = steps.index(-2)
            assert steps == [2] * turn + [-2] * (16 - turn)
            assert 6 <= turn <= 10
        else:
            assert set(steps) == {1 if manner == "moving slowly" else 2}


def test_two_that_move_towards_each_other_pass_each_other() -> None:
    for manner in MANNERS[:2]:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            leftwards = track(Mover(BAG, manner, "left"), "top", rng)
            rightwards = track(Mover(DRESS, manner, "right"), "bottom", rng)
            middles = [(a[1] + 15, b[1] + 10) for a, b in zip(leftwards, rightwards, strict=True)]
            assert middles[0][0] > middles[0][1]
            assert middles[-1][0] < middles[-1][1]


@pytest.mark.usefixtures("drawn_garments")
def test_movers_stay_in_their_half_and_own_their_pixels() -> None:
    for clip in sample_clips(24):
        _, owners = render_clip(clip, np.random.default_rng(3))
        assert owners.shape == (FRAMES, 64, 64)
        assert set(np.unique(owners)) == set(range(len(clip.movers) + 1))
        halves = {
            "left": np.s_[:, :, :32],
            "right": np.s_[:, :, 32:],
            "top": np.s_[:, :32],
            "bottom": np.s_[:, 32:],
        }
        for number, region in enumerate(clip.regions(), 1):
            inside = owners[halves.get(region, np.s_[:])]
            assert (inside == number).sum() == (owners == number).sum()


@pytest.mark.usefixtures("drawn_garments")
def test_fewer_frames_are_the_start_of_the_clip() -> None:
    clip = sample_clips(1)[0]
    whole = render_clip(clip, np.random.default_rng(5))[0]
    assert np.array_equal(whole[:9], render_clip(clip, np.random.default_rng(5), frames=9)[0])


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(20 + t, 30) for t in range(17)], Motion("down", "moving slowly")),
        ([(52 - 2 * t, 30) for t in range(17)], Motion("up", "moving quickly")),
        ([(30, 20 + t + (-1) ** t) for t in range(17)], Motion("right", "moving slowly")),
        ([(30, 10 + abs(16 - 2 * t)) for t in range(17)], Motion("left", "bouncing")),
        ([(30, 50 - abs(12 - 2 * t)) for t in range(17)], Motion("right", "bouncing")),
        ([(30 + (-1) ** t, 30) for t in range(17)], Motion(None, "still")),
    ],
)
def test_motion_is_read_off_a_path(places: list[tuple[int, int]], expected: Motion) -> None:
    assert read_motion(torch.tensor(places, dtype=torch.float32)) == expected


def test_middles_are_those_of_what_differs_from_the_ground() -> None:
    frames = torch.full((3, 3, 64, 64), 0.9)
    for frame in range(3):
        frames[frame, 0, 10:20, 30 + 4 * frame : 40 + 4 * frame] = 0.1
        frames[frame, 2, 50:60, 5:15] = 0.1
    assert centres(frames, "top").round(decimals=3).tolist() == [[15, 35], [15, 39], [15, 43]]
    assert centres(frames, "bottom").round(decimals=3).tolist() == [[55, 10]] * 3


def test_an_empty_frame_keeps_the_middle_of_the_one_before() -> None:
    frames = torch.full((3, 3, 64, 64), 0.9)
    frames[1, 0, 10:20, 10:20] = 0.1
    found = centres(frames, "left").round(decimals=3)
    assert found.tolist() == [[32, 16], [15, 15], [15, 15]]


@pytest.mark.usefixtures("drawn_garments")
def test_the_measured_motion_of_drawn_clips_is_the_described_one() -> None:
    clips = sample_clips(48)
    found = clip_figures(Judge.load(), videos(clips), clips)
    assert found["direction"] >= 0.95
    assert found["manner"] >= 0.95
    assert found["colour"] >= 0.95


@pytest.mark.usefixtures("drawn_garments")
def test_a_clip_that_shows_something_else_scores_low() -> None:
    clips = sample_clips(8)
    backwards = videos(clips).flip(1)
    moved = [clip for clip in clips if all(m.manner != "bouncing" for m in clip.movers)]
    chosen = [clips.index(clip) for clip in moved]
    found = clip_figures(Judge.load(), backwards[chosen], moved)
    assert found["direction"] == 0
    assert found["manner"] == 0


def test_videos_that_do_not_fit_the_clips_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 17, 3, 64, 64\)"):
        clip_figures(Judge.load(), torch.zeros(2, 16, 3, 64, 64), sample_clips(2))


@pytest.mark.usefixtures("drawn_garments")
def test_steadiness_does_not_mind_motion_but_minds_flicker() -> None:
    clip = parse_clip("a large red bag moving quickly left on a mint ground")
    frames = videos([clip])[0]
    path = centres(frames, "whole")
    flicker = frames.clone()
    flicker[::2] *= 0.8
    assert steadiness(frames, path) > 40
    assert steadiness(flicker, path) < 25
    assert math.isclose(
        steadiness(frames[:1].expand(4, -1, -1, -1), path[:1].expand(4, -1)), 60, abs_tol=1e-3
    )
