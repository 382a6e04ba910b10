"""What caches that follow the schedule alone leave of a generation's work, and what they hold."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from accel.sites import Site
from accel.work import Run
from caching.fixed_steps import Fixed
from caching.guards import place_computes
from caching.outputs import OutputRule, due
from caching.predictor import Predictor
from caching.stack import segments_of
from caching.unet_cache import UNetCache, UNetRule


def stack_run(
    run: Run,
    blocks: Sequence[Site],
    policy: Fixed,
    predictor: Predictor,
    *,
    warmup: int = 0,
    tail: int = 0,
    min_steps: int = 0,
) -> Run:
    """What is left where these blocks rest as a stack, when the policy has them rest."""
    resting = [
        place.step
        for place in run.moments
        if place.step
        and place_computes(
            place.step, place.num_steps, warmup=warmup, tail=tail, min_steps=min_steps
        )
        is None
        and policy.at(place).reuse
    ]
    ends = (segment[-1] for segment in segments_of(blocks))
    one = sum(run.whole.output(site.path) for site in ends)
    depth = max(predictor.depth, policy.depth)
    copies = _copies(run, resting, depth) + min(predictor.trail, _longest(resting))
    return _rest(run, blocks, resting).holding(copies * one)


def outputs_run(run: Run, rule: OutputRule) -> Run:
    """What is left where modules are answered for as the rule says."""
    left = run
    for group in rule.groups:
        computed: int | None = None
        resting = []
        for place in run.moments:
            placed = place_computes(
                place.step,
                place.num_steps,
                warmup=rule.warmup,
                tail=rule.tail,
                min_steps=rule.min_steps,
            )
            if placed is None and due(group, computed, place) is None:
                resting.append(place.step)
            else:
                computed = place.step
        one = sum(run.whole.output(site.path) for site in group.sites)
        held = _copies(run, resting, rule.depth) * one if group.interval > 1 else 0
        left = _rest(left, group.sites, resting).holding(held)
    return left


def unet_run(run: Run, cache: UNetCache) -> Run:
    """What is left where the deep part of a UNet rests as the cache's rule says."""
    rule = cache.rule
    resting = [place.step for place in run.moments if place.step and _rests(rule, place.step, run)]
    depth = rule.predictor.depth
    one = sum(run.whole.output(path) for path in cache.kept_paths)
    left = run.without(cache.resting_paths, resting)
    return left.holding(_copies(run, resting, depth) * one)


def _rests(rule: UNetRule, step: int, run: Run) -> bool:
    return rule.whole(step, len(run.evaluations)) is None


def _rest(run: Run, sites: Iterable[Site], steps: Sequence[int]) -> Run:
    return run.without((site.path for site in sites), steps)


def _longest(steps: Sequence[int]) -> int:
    """The longest row of evaluations without a gap."""
    longest = row = 0
    for before, step in pairwise((-2, *steps)):
        row = row + 1 if step == before + 1 else 1
        longest = max(longest, row)
    return longest


def _copies(run: Run, resting: Sequence[int], depth: int) -> int:
    """How many computed evaluations are kept at once."""
    return min(depth, len(run.evaluations) - len(resting)) if resting else 0
