"""Untrained language models of the zoo: their sizes, and how they are written to disk.

All are stock `LlamaForCausalLM` with `is_causal=False`, which makes their attention bidirectional.
Their configuration says how they are driven: `mask_token_id`; `block_length`, where tokens see
only their own and earlier blocks (SDAR, arXiv 2510.06303); `logits_shifted`, where the prediction
for a position stands one position before it (Dream, arXiv 2508.15487).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from accel.errors import OptionError, nearest
from accel.zoo.language.vocabulary import (
    END_ID,
    MASK_ID,
    MOST_POSITIONS,
    PAD_ID,
    START_ID,
    language_tokenizer,
    vocabulary,
)

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

HEAD_DIM = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model, and how it is driven; `block_length` 0 lets every token see every other."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    block_length: int = 0
    logits_shifted: bool = False


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "tiny-llada": Shape(hidden_size=160, intermediate_size=416, num_layers=6),
        "tiny-sdar": Shape(hidden_size=128, intermediate_size=352, num_layers=5, block_length=8),
        "tiny-dream": Shape(
            hidden_size=128, intermediate_size=352, num_layers=5, logits_shifted=True
        ),
    }
)


def shape_named(name: str) -> Shape:
    """The shape of the model `name`.

    Raises:
        OptionError: there is no such model.
    """
    if name not in SHAPES:
        raise OptionError(
            f"There is no language model {name!r}; there are {', '.join(SHAPES)}."
            f"{nearest(name, SHAPES)}"
        )
    return SHAPES[name]


def new_model(shape: Shape, seed: int = 0) -> "LlamaForCausalLM":
    """An untrained model of this shape; equal seeds give equal weights.

    The global random state is as it was afterwards.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.hidden_size // HEAD_DIM,
        max_position_embeddings=MOST_POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        is_causal=False,
        use_cache=False,
        pad_token_id=PAD_ID,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
        mask_token_id=MASK_ID,
        block_length=shape.block_length,
        logits_shifted=shape.logits_shifted,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def save_model(folder: Path, model: "LlamaForCausalLM") -> None:
    """Write a folder for `from_pretrained`: weights in fp16, configuration and tokenizer."""
    from accel.zoo.blueprint import save_half

    save_half(model, folder)
    language_tokenizer().save_pretrained(folder)
