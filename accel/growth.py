"""How the work of a model grows with the picture, in closed form, from counts at two sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from accel.errors import OptionError
from accel.work import Part, Work


@dataclass(frozen=True, slots=True)
class Growth:
    """FLOPs of one call as a function of the picture's tokens N.

    Attention over N + t tokens costs `core` * (N + t) ** 2, the t of them being text; everything
    else a part that is `fixed` and one that is `linear` in N. That holds for attention over a whole
    picture or clip with a prompt of one length. Attention of which the cost does not grow with the
    square (linear attention) counts to the linear parts.

    Attributes:
        core: FLOPs for each pair of tokens.
        beside: the tokens t.
        fixed, linear: FLOPs by part, and those for each token.
    """

    core: float
    beside: float
    fixed: Mapping[Part, float]
    linear: Mapping[Part, float]

    @classmethod
    def between(cls, first: Work, second: Work) -> Self:
        """The growth that goes through two counts of one model.

        Raises:
            OptionError: if they are of different models, or of one size.
        """
        if first.model != second.model or first.tokens == second.tokens or first.tokens < 1:
            raise OptionError(
                f"Found {first.model} at {first.tokens} tokens and {second.model} at "
                f"{second.tokens}; growth needs one model at two sizes."
            )
        if first.tokens > second.tokens:
            return cls.between(second, first)
        core, beside = _square(first, second)
        straight = [part for part in Part if part is not Part.CORE or not core]
        gap = second.tokens - first.tokens
        linear = {part: (second.flops[part] - first.flops[part]) / gap for part in straight}
        fixed = {part: first.flops[part] - linear[part] * first.tokens for part in straight}
        return cls(core, beside, fixed, linear)

    def flops(self, tokens: float) -> dict[Part, float]:
        """FLOPs by part at a number of tokens."""
        found = dict.fromkeys(Part, 0.0)
        found |= {part: self.fixed[part] + self.linear[part] * tokens for part in self.linear}
        found[Part.CORE] += self.core * (tokens + self.beside) ** 2
        return found

    def total(self, tokens: float) -> float:
        """All FLOPs at a number of tokens."""
        return sum(self.flops(tokens).values())

    @property
    def crossover(self) -> float:
        """Tokens above which the attention core is more than half of the work; may be infinite."""
        # core (N + t)^2 = fixed + linear N
        fixed, linear = sum(self.fixed.values()), sum(self.linear.values())
        if not self.core:
            return math.inf
        half = linear / (2 * self.core) - self.beside
        rest = self.beside**2 - fixed / self.core
        return max(0.0, half + math.sqrt(max(0.0, half**2 - rest)))


def _square(first: Work, second: Work) -> tuple[float, float]:
    """What a pair of tokens costs, and how many tokens are beside the picture's."""
    small, large = math.sqrt(first.flops[Part.CORE]), math.sqrt(second.flops[Part.CORE])
    root = (large - small) / (second.tokens - first.tokens)
    if root <= 0:
        return 0.0, 0.0
    beside = small / root - first.tokens
    # Linear attention looks as if there were more text than picture.
    expected = first.context_tokens
    if beside > max(first.tokens, 2 * expected):
        return 0.0, 0.0
    return root**2, beside
