"""What sparse attention is predicted to gain, so that it stays off where it cannot.

Estimates from rooflines and cross-compiled kernels, not measurements of the machine at hand; they
err on the side of leaving attention alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """What one kind of device is taken to do.

    Attributes:
        dense: floating-point operations a second of dense attention.
        sparse: the same on the tiles of a plan.
        cluster: the same of the products that cluster.
        fixed_s: seconds of one plan, whatever its size.
        head_s: seconds of one head's plan, whatever its size.
    """

    dense: float
    sparse: float
    cluster: float
    fixed_s: float
    head_s: float


GPU = Machine(640e12, 380e12, 350e12, fixed_s=2e-4, head_s=0.0)
CPU = Machine(80e9, 60e9, 60e9, fixed_s=2e-4, head_s=8e-4)


def predicted_gain(
    machine: Machine, *, heads: int, tokens: int, head_dim: int, density: float, clusters: int
) -> float:
    """How many times as fast one attention is predicted to be with a plan as without.

    Args:
        machine: what it runs on.
        heads: times batch.
        tokens: of the sequence.
        head_dim: D.
        density: share of the scores that the plan computes.
        clusters: centroids that every token is compared with, a quarter of the time; 0 for none.
    """
    scores = heads * 4 * tokens**2 * head_dim
    dense = scores / machine.dense
    planning = heads * 2 * tokens * clusters * head_dim / 4 / machine.cluster
    planning += machine.fixed_s + heads * machine.head_s
    return dense / (density * scores / machine.sparse + planning)
