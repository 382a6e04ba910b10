"""What the conditioning makes of a transformer block's input, before the block runs."""

import inspect
from typing import Any

from torch import Tensor, nn

from accel.layers import Call
from accel.sites import uncompiled

# Arguments by which blocks receive the embedded noise level.
_EMBEDDINGS = (
    "temb",
    "emb",
    "timestep_proj",
    "time_embed",
    "adaln_input",
    "embedded_timestep",
    "timestep",
    "vec",
    "modulation",
)


def modulated_input(call: Call) -> Tensor:
    """The first normalised and modulated input of a block, [B, N, C], as TeaCache compares it.

    Adaptive norms (Flux, SD3, DiT, CogVideoX) are called; blocks with a table of shifts and scales
    (Wan, PixArt, LTX) have theirs applied. A block with neither gives its noise-level embedding,
    and one that receives none its input as it is.
    """
    block = uncompiled(call.site.module)
    embedding = next(
        (value for name in _EMBEDDINGS if isinstance(value := call.argument(name), Tensor)), None
    )
    if embedding is None:
        return call.hidden
    by_norm = _by_norm(getattr(block, "norm1", None), call, embedding)
    if by_norm is not None:
        return by_norm
    table = getattr(block, "scale_shift_table", None)
    if not isinstance(table, Tensor):
        return embedding
    return _by_table(table, getattr(block, "norm1", None), call.hidden, embedding)


def _by_norm(norm: Any, call: Call, embedding: Tensor) -> Tensor | None:
    """The output of an adaptive norm, or None if it is an ordinary one or its weights are away."""
    if not isinstance(norm, nn.Module) or not _here(norm, call.hidden):
        return None
    linear = getattr(norm, "linear", None)
    own = getattr(norm, "emb", None) is not None
    # Chroma's norms project nothing: they are handed a slice that only the block knows.
    if not own and getattr(linear, "in_features", None) != embedding.shape[-1]:
        return None
    names = list(inspect.signature(norm.forward).parameters)
    known: dict[str, Any] = {
        "emb": embedding,
        "temb": embedding,
        "timestep": embedding,
        "conditioning_embedding": embedding,
        "class_labels": call.argument("class_labels"),
        "encoder_hidden_states": call.context,
        "hidden_dtype": call.hidden.dtype,
    }
    extra = {name: known[name] for name in names[1:] if name in known}
    if not any(value is embedding for value in extra.values()):
        return None
    output = norm(call.hidden, **extra)
    modulated: Tensor = output if isinstance(output, Tensor) else output[0]
    return modulated


def _here(module: nn.Module, like: Tensor) -> bool:
    # Offloading brings a block's weights only when the block itself is called.
    return all(weight.device == like.device for weight in module.parameters())


def _by_table(table: Tensor, norm: Any, hidden: Tensor, embedding: Tensor) -> Tensor:
    """Shift and scale are the first two rows of the table plus the embedding."""
    rows, channels = table.shape[-2:]
    if table.device != hidden.device or embedding.numel() % (rows * channels):
        return embedding
    if not isinstance(norm, nn.Module) or not _here(norm, hidden):
        return embedding
    both = (
        table.reshape(rows, channels) + embedding.reshape(len(hidden), -1, rows, channels)
    ).float()
    shift, scale = both[:, :, 0], both[:, :, 1]
    modulated: Tensor = norm(hidden.float()) * (1 + scale) + shift
    return modulated
