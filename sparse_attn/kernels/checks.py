"""What the operations ask of their tensors, with one wording for all."""

from collections.abc import Iterable

import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import target

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def require_shape(name: str, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Checks that a tensor has this shape.

    Raises:
        OptionError: where it has not.
    """
    if tuple(tensor.shape) != shape:
        raise OptionError(f"{name}: {what} has shape {tuple(tensor.shape)}; expected {shape}.")


def require_dims(name: str, tensors: dict[str, Tensor], dims: int) -> None:
    """Checks that all tensors have so many dimensions.

    Raises:
        OptionError: naming the first that has not.
    """
    for what, tensor in tensors.items():
        if tensor.dim() != dims:
            raise OptionError(
                f"{name}: {what} has shape {tuple(tensor.shape)}; expected {dims} dimensions."
            )


def require_floats(name: str, tensors: dict[str, Tensor], device: torch.device) -> None:
    """Checks that the tensors are floating, on one device and need no gradient.

    A kernel takes float16, bfloat16 and float32; the references take float64, too.

    Raises:
        OptionError: naming the first that is not.
    """
    runs = target.missing(device) is None
    allowed = DTYPES if runs else (*DTYPES, torch.float64)
    for what, tensor in tensors.items():
        if tensor.dtype not in allowed:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            raise OptionError(f"{name}: {what} is {tensor.dtype}; expected one of {names}.")
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise OptionError(
                f"{name}: {what} requires a gradient, and there is none here. "
                "Call it under torch.no_grad(), or detach the tensor."
            )
    require_device(name, tensors, device)


def require_integers(name: str, tensors: dict[str, Tensor], device: torch.device) -> None:
    """Checks that the tensors are int32 or int64 and on one device.

    Raises:
        OptionError: naming the first that is not.
    """
    for what, tensor in tensors.items():
        if tensor.dtype not in (torch.int32, torch.int64):
            raise OptionError(f"{name}: {what} is {tensor.dtype}; expected int32 or int64.")
    require_device(name, tensors, device)


def require_device(name: str, tensors: dict[str, Tensor], device: torch.device) -> None:
    """Checks that the tensors are on this device.

    Raises:
        OptionError: naming the first that is not.
    """
    for what, tensor in tensors.items():
        if tensor.device != device:
            raise OptionError(f"{name}: {what} is on {tensor.device}; expected {device}.")


def require_one_dtype(name: str, tensors: dict[str, Tensor]) -> None:
    """Checks that the tensors have one dtype.

    Raises:
        OptionError: naming those that there are.
    """
    kinds = {what: str(tensor.dtype).removeprefix("torch.") for what, tensor in tensors.items()}
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{what} {kind}" for what, kind in kinds.items())
        raise OptionError(f"{name}: one dtype is needed, found {listed}.")


def require_head_dim(name: str, head_dim: int, allowed: Iterable[int]) -> None:
    """Checks that a kernel is made for this head dimension.

    Raises:
        OptionError: where none is.
    """
    if head_dim not in set(allowed):
        listed = ", ".join(map(str, allowed))
        raise OptionError(
            f"{name}: head_dim {head_dim} has no kernel; expected one of {listed}. "
            "Use the torch backend."
        )
