"""Re-ttention: a narrow window, made up for by what it missed when all was last computed."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from accel.method import Tunable, require_number
from sparse_attn.blocks import BlockMethod, block_plan, on_device, raster, require_share
from sparse_attn.plan.bands import band
from sparse_attn.plan.plan import Plan
from sparse_attn.problem import Problem
from sparse_attn.sparse_method import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Rettention(BlockMethod):
    """Computes a narrow band, scaled to its share of the softmax, plus what was missing last time.

    When everything is computed, the band is as well. Kept are the share of each query's sum of
    exponentials that lies in the band, and the difference between the full output and the band's,
    scaled by that share. Until everything is computed again, the band's output is scaled by the
    share, which grows a little each evaluation, and the difference is added.

    Source: arXiv 2505.22918; the window is its own, refresh and dense steps those of its code for
    CogVideoX. Departures: the difference is taken before the output projection, which is linear; an
    interval runs from the last full computation; the share is at most 1.

    Attributes:
        density: share of the picture's scores in the band, above 0.
        refresh: evaluations from one full computation to the next, from 1.
        growth: what is added to the share at each evaluation since, 0 or more.
    """

    density: float = 0.03125
    refresh: int = 5
    growth: float = 0.04
    dense_steps: float = 0.3

    source: ClassVar[str] = "arXiv 2505.22918"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("density", 0.02, 0.5, "down"),
        Tunable("refresh", 2, 10, "up"),
    )

    def _check(self) -> None:
        BlockMethod._check(self)  # noqa: SLF001 -- its own base
        require_share(self, "density", self.density)
        require_number(self, "refresh", self.refresh, low=1, whole=True)
        require_number(self, "growth", self.growth, low=0.0)

    def neutral(self) -> Self:
        """The band that holds everything."""
        return replace(self, density=1.0)

    @property
    def computes_all(self) -> bool:
        """Whether the band holds everything."""
        return self.density >= 1

    @property
    def expected_density(self) -> float:
        """The band's, and everything at times."""
        return min(1.0, self.density + 1 / self.refresh)

    def plan(self, problem: Problem) -> Plan:
        """The band."""
        return self._band(problem, self.density)

    def answer(self, problem: Problem, run: Run) -> Tensor:
        """The band's output, made up for, or everything where that is due."""
        kept, numbers, step = problem.kept("missed"), problem.memory.numbers, problem.call.step
        out, lse = run(self.plan(problem))
        if kept is not None and step - numbers["computed"] < self.refresh:
            assert kept.context is not None, "shares are kept beside differences"
            share = kept.context + self.growth * (step - numbers["computed"])
            return (out.float() * share.clamp(max=1) + kept.hidden).to(out.dtype)
        full, full_lse = run(self._band(problem, 1.0))
        share = torch.exp2(lse - full_lse)[..., None]
        numbers["computed"] = step
        problem.keep("missed", (full - out.float() * share).to(out.dtype), share)
        return full

    def _band(self, problem: Problem, density: float) -> Plan:
        blocks = -(-problem.place.length // self.block)
        keep = on_device(band(blocks, density), problem)
        return block_plan(problem, keep, raster(problem.place.length), self.block)
