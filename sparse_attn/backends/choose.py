"""Which backend computes: the first that can on this device, or the one asked for by name."""

import importlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from accel.errors import AccelUnsupportedError, OptionError, nearest
from sparse_attn.backends.backend import Backend
from sparse_attn.plan.plan import Plan

_CLASSES = {
    "triton": "TritonBackend",
    "xformers": "XFormersBackend",
    "torch": "TorchBackend",
    "reference": "ReferenceBackend",
}
# What gains anything there. On a GPU torch's gathers would be slower than its dense attention.
_GPU = ("triton", "xformers")
_CPU = ("torch",)


def check_name(owner: object, name: str | None) -> None:
    """Checks that a backend of this name exists; None means that it is chosen.

    Raises:
        OptionError: naming those that there are.
    """
    if name is not None and name not in _CLASSES:
        raise OptionError(
            f"{type(owner).__name__}: backend is {name!r}; expected one of {', '.join(_CLASSES)}, "
            f"or None for the one that suits the device.{nearest(str(name), _CLASSES)}"
        )


def load(name: str) -> Backend:
    """The backend of this name; imports what it needs only now."""
    module = importlib.import_module(f"sparse_attn.backends.{name}")
    backend: Backend = getattr(module, _CLASSES[name])()
    return backend


@dataclass(slots=True)
class Chooser:
    """Picks the backend for one generation, and remembers what failed in it.

    A backend whose launch fails is not tried again: the next one answers, or nobody.

    Attributes:
        name: the one asked for, or None for the first that can.
        failed: what failed, and how.
        refused: why the others were not taken, in a few words, at the last choice.
    """

    name: str | None = None
    failed: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def choose(self, q: Tensor, k: Tensor, v: Tensor) -> Backend | None:
        """The backend for these tensors, or None where none that gains can take them.

        Raises:
            AccelUnsupportedError: if the one asked for by name cannot take them.
        """
        refused: list[str] = []
        for name in self._candidates(q):
            why = self.failed.get(name)
            backend = load(name)
            why = why or backend.refuses(q, k, v)
            if why is None:
                self.refused = tuple(refused)
                return backend
            refused.append(why)
            if name == self.name and name not in self.failed:
                raise AccelUnsupportedError(
                    f"The backend {name!r} was asked for, but {why}. Choose another, or None for "
                    "the one that suits the device."
                )
        self.refused = tuple(refused)
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, scale: float
    ) -> tuple[Tensor, Tensor] | None:
        """Output and LSE as of `Backend.attend`, or None where no backend is left that can.

        Raises:
            AccelUnsupportedError: as of `choose`.
        """
        while (backend := self.choose(q, k, v)) is not None:
            try:
                return backend.attend(q, k, v, plan, scale=scale)
            except torch.OutOfMemoryError:
                # Whatever else would answer needs as much.
                raise
            except Exception as error:  # noqa: BLE001 -- compilers and drivers raise what they like
                self.failed[backend.name] = (
                    f"{backend.name} failed ({type(error).__name__}: {str(error)[:200]})"
                )
        return None

    def _candidates(self, q: Tensor) -> tuple[str, ...]:
        fitting = _CPU if q.device.type == "cpu" else _GPU
        if self.name is None:
            return fitting
        return (self.name, *(name for name in fitting if name != self.name))
