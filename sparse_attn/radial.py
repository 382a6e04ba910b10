"""Radial attention: windows that shrink as frames are further apart."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from accel.method import Tunable
from sparse_attn.blocks import BlockMethod, block_plan, on_device, raster, require_share
from sparse_attn.plan.bands import radial
from sparse_attn.plan.plan import Plan
from sparse_attn.problem import Problem
from sparse_attn.sparse_method import lattice_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Radial(BlockMethod):
    """Queries see keys near their own place in other frames, the nearer the further the frame is.

    Each doubling of the distance between frames halves the window. Where it would be narrower than
    a block, it stays one block and only every second, fourth, ... frame has one. All see the first
    frame. The pattern is static and the same in all heads.

    Source: arXiv 2506.19852; the defaults are its code's for Wan, which has a quarter of dense
    steps. Departures: a pair of blocks is seen where the share `coverage` of its scores, judged
    from eight tokens a block, is in a window; frames next to each other have no window of their
    own.

    Attributes:
        decay: factor on the windows' width, above 0; None for windows without end.
        coverage: share of a pair's scores, above 0 to 1.
    """

    decay: float | None = 1.0
    coverage: float = 1 / 3
    dense_steps: float = 0.25
    dense_layers: float = 0.03

    source: ClassVar[str] = "arXiv 2506.19852"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("decay", 0.2, 2.0, "down"),)

    def _check(self) -> None:
        BlockMethod._check(self)  # noqa: SLF001 -- its own base
        if self.decay is not None:
            require_share(self, "decay", self.decay, most=math.inf)
        require_share(self, "coverage", self.coverage)

    def neutral(self) -> Self:
        """Windows without end."""
        return replace(self, decay=None)

    @property
    def computes_all(self) -> bool:
        """Whether the windows have no end."""
        return self.decay is None

    def unfit(self, problem: Problem) -> str | None:
        """A picture of a single block, a single frame, or one whose lattice is not known."""
        lattice = problem.place.lattice
        if lattice is not None and lattice[0] == 1:
            return "there is one frame only"
        return lattice_needed(problem) or BlockMethod.unfit(self, problem)

    def plan(self, problem: Problem) -> Plan:
        """What is computed."""
        lattice = problem.place.lattice
        assert lattice is not None, "`unfit` says so otherwise"
        assert self.decay is not None, "nothing is asked for where windows have no end"
        pattern = on_device(radial(lattice, self.block, self.decay, self.coverage), problem)
        return block_plan(problem, pattern, raster(problem.place.length), self.block)
