"""When a stack of blocks is reused: what every policy of a stack cache is asked, and answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.sites import Site, Streams
from caching.predictor import Predictor


def _nothing() -> None:
    """What is kept where nothing is."""


@dataclass(slots=True)
class Ask:
    """One denoiser call, at the moment of its decision.

    Attributes:
        call: of the block before which (`head` 0) or after which the decision falls.
        change: what the head blocks added to the visual stream, [B, N, C]; None without head
            blocks, or where it could not be taken.
        finite: gives a scalar that is not finite as soon as a kept residual is not, None where none
            is kept. Only a policy that measures need look at it.
    """

    call: Call
    change: Tensor | None = None
    finite: Callable[[], Tensor | None] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a policy says of one call.

    Attributes:
        reuse: whether the middle of the stack may be reused.
        reason: why, in a few words.
        value: the number that was compared, if one was measured.
        firm: whether the other guidance branch of the step may not overrule it.
        chosen: whether computing was the policy's choice ("computed"), not a need ("forced").
    """

    reuse: bool
    reason: str
    value: float | None = None
    firm: bool = False
    chosen: bool = True


class Policy(ABC):
    """Decides once a denoiser call whether the blocks between head and tail are reused.

    A policy is shared by all guidance branches; what it remembers of one during one generation is
    in the state that `new_state` makes.

    Class attributes:
        measures: whether `judge` reads a number from the device; it then looks at `finite` too.
        idle: what the report says where the policy never engages.
    """

    measures: ClassVar[bool] = False
    idle: ClassVar[str] = "never reuses"

    @property
    def head(self) -> int:
        """How many blocks run before the decision."""
        return 0

    @property
    def depth(self) -> int:
        """How many computed residuals its own predictors need."""
        return 1

    @property
    @abstractmethod
    def engages(self) -> bool:
        """Whether it can ever reuse; if not, nothing is kept."""

    @abstractmethod
    def new_state(self) -> Any:
        """What is remembered of one branch during one generation; has `nbytes`."""

    @abstractmethod
    def judge(self, state: Any, ask: Ask) -> Answer:
        """Whether this call may reuse; asked only where no guard has it computed."""

    def decided(self, state: Any, ask: Ask, *, reuse: bool) -> None:  # noqa: B027 -- most need not know
        """Told of every decision, whoever took it."""

    def recorded(self, state: Any, call: Call, residual: Streams) -> None:  # noqa: B027 -- most need not know
        """Told of what the first segment added in a computed call."""

    def missed(self, state: Any, error: Tensor) -> None:  # noqa: B027 -- most need not know
        """Told how wrong a prediction would have been where a computed call followed reuse."""

    def predictor(self, call: Call, usual: Predictor) -> Predictor:  # noqa: ARG002 -- most take the usual one
        """What predicts the residuals of this call."""
        return usual

    def watch(
        self,
        blocks: Sequence[Site],  # noqa: ARG002 -- most look at no block
        state_of: Callable[[Call], Any],  # noqa: ARG002 -- most look at no block
    ) -> Iterator[Binding]:
        """Yields hooks of its own on the blocks; `state_of` gives the state for a call."""
        return iter(())
