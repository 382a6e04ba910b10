"""What sparse attention and token reduction save of a model's work, and where they cannot gain."""

import math
from enum import StrEnum

from accel.errors import OptionError
from accel.work import Part, Work

# Seconds of a FLOP relative to a FLOP of dense attention, as projected for an H100-class device:
# dense 640 TFLOP/s, tiles that are kept 380, assignment to clusters 350.
_TILE_S = 640 / 380
_ASSIGN_S = 640 / 350
# Scoring clusters and moving the tokens, as so many queries of dense attention.
_SORTING_TOKENS = 756.0


class Scope(StrEnum):
    """Which work a token reduction takes tokens out of."""

    QUERIES = "q"
    KEYS = "kv"
    ATTENTION = "attention"
    MLP = "mlp"
    BLOCK = "block"
    MODEL = "model"


def planning_share(
    tokens: float,
    *,
    clusters: float = 1300,
    iterations: float = 2,
    assign_s: float = _ASSIGN_S,
    sorting_tokens: float = _SORTING_TOKENS,
) -> float:
    """What planning by clusters costs, as a share of dense attention's time.

    Assigning N queries and N keys of one head to `clusters` in all takes 2 N d clusters FLOPs an
    iteration, dense attention 4 N² d, so the share falls with N.

    Args:
        tokens: N, from 1.
        clusters: of queries and of keys together.
        iterations: of clustering at every evaluation; 0 where labels are kept.
        assign_s: seconds of a FLOP of the assignment, in those of dense attention.
        sorting_tokens: all else that is linear in N, as so many queries of dense attention.

    Raises:
        OptionError: if there is no token.
    """
    if tokens < 1:
        raise OptionError(f"tokens is {tokens!r}; expected a number from 1 up.")
    return (assign_s * iterations * clusters / 2 + sorting_tokens) / tokens


def break_even_density(planning: float, *, tile_s: float = _TILE_S) -> float:
    """The share of score tiles below which sparse attention takes less time than dense; maybe 0.

    Args:
        planning: its planning, as a share of dense attention's time.
        tile_s: seconds of a FLOP in a tile that is kept, in those of dense attention.
    """
    return max(0.0, (1 - planning) / tile_s)


def fewest_tokens(
    density: float, *, tile_s: float = _TILE_S, clusters: float = 1300, iterations: float = 2
) -> float:
    """Tokens up to which attention of this density cannot gain; infinite if it never does.

    Args:
        density: share of the score tiles that are computed, 0 to 1.
        tile_s: as for `break_even_density`.
        clusters: as for `planning_share`.
        iterations: as for `planning_share`.
    """
    _check_share("density", density)
    spare = 1 - density * tile_s
    if spare <= 0:
        return math.inf
    return planning_share(1, clusters=clusters, iterations=iterations) / spare


def sparse(work: Work, density: float, *, planning: float, tile_s: float = _TILE_S) -> Work:
    """The same work where this share of attention's score tiles is computed.

    FLOPs of the core are those of dense attention that would take as long, planning included, so
    that any model of time that knows dense attention prices it.

    Raises:
        OptionError: if the density is not from 0 to 1.
    """
    _check_share("density", density)
    return work.scaled({Part.CORE: density * tile_s + planning})


def reduced(work: Work, scope: Scope | str, keep: float) -> Work:
    """The same work on a share of the picture's tokens; choosing and restoring them is free.

    Text beside the picture always stays. Queries and keys that are dropped behind their projections
    save none of those.

    Args:
        work: of a call.
        scope: what works on fewer tokens.
        keep: the share of the picture's tokens that is kept, above 0 to 1.

    Raises:
        OptionError: for an unknown scope, or a share outside its range.
    """
    _check_share("keep", keep)
    try:
        chosen = Scope(scope)
    except ValueError:
        known = ", ".join(map(str, Scope))
        raise OptionError(f"scope is {scope!r}; expected one of {known}.") from None
    everything = work.tokens + work.context_tokens
    kept = (keep * work.tokens + work.context_tokens) / everything if everything else keep
    if chosen in (Scope.QUERIES, Scope.KEYS):
        return work.scaled({Part.CORE: kept})
    if chosen is Scope.MLP:
        return work.scaled({Part.MLP: kept})
    shares = {Part.CORE: kept**2, Part.PROJECTIONS: kept}
    if chosen is Scope.ATTENTION:
        return work.scaled(shares)
    return work.scaled(shares | {Part.MLP: kept, Part.CROSS: kept}, rest=kept)


def _check_share(name: str, value: float) -> None:
    if not (isinstance(value, (int, float)) and 0 <= value <= 1):
        raise OptionError(f"{name} is {value!r}; expected a share from 0 to 1.")
