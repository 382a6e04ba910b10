"""Tiny models of images that take them as packed tokens, with joint attention."""

import torch

from tests.coverage.entry import (
    TOKENS,
    Entry,
    at_time,
    flow_inputs,
    grid,
    mask,
    pooled,
    rand,
    text,
    tiny,
)
from tests.tiny import models
from tests.tiny.models import POOLED_DIM, TEXT_DIM

_FLUX = {
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 12,
    "num_attention_heads": 2,
    "joint_attention_dim": TEXT_DIM,
    "axes_dims_rope": (4, 4, 4),
}
PACKED = (
    Entry(
        "BriaFiboTransformer2DModel",
        tiny("BriaFiboTransformer2DModel", **_FLUX, text_encoder_dim=8),
        lambda: flow_inputs(
            16, text_encoder_layers=[rand(1, TOKENS, 8, salt=layer) for layer in range(5)]
        ),
    ),
    Entry(
        "BriaTransformer2DModel",
        tiny("BriaTransformer2DModel", **_FLUX, pooled_projection_dim=POOLED_DIM),
        lambda: flow_inputs(16, pooled_projections=pooled()),
    ),
    Entry(
        "ChromaTransformer2DModel",
        models.chroma,
        lambda: flow_inputs(16),
    ),
    Entry(
        "Flux2Transformer2DModel",
        models.flux2,
        lambda: flow_inputs(16, axes=4, guidance=at_time(4.0)),
    ),
    Entry(
        "Flux3Transformer2DModel",
        tiny(
            "Flux3Transformer2DModel",
            **_FLUX | {"axes_dims_rope": (4, 4, 2, 2), "timestep_channels": 8},
            cond_in_channels=16,
        ),
        lambda: flow_inputs(16, axes=4),
    ),
    Entry(
        "FluxTransformer2DModel",
        models.flux,
        lambda: flow_inputs(64, pooled_projections=pooled()),
    ),
    Entry(
        "Krea2Transformer2DModel",
        tiny(
            "Krea2Transformer2DModel",
            in_channels=16,
            num_layers=3,
            attention_head_dim=12,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=32,
            timestep_embed_dim=8,
            text_hidden_dim=TEXT_DIM,
            num_text_layers=2,
            text_num_attention_heads=2,
            text_num_key_value_heads=2,
            text_intermediate_size=16,
            num_layerwise_text_blocks=1,
            num_refiner_text_blocks=2,
            axes_dims_rope=(4, 4, 4),
        ),
        lambda: {
            "hidden_states": rand(1, 16, 16),
            "encoder_hidden_states": rand(1, TOKENS, 2, TEXT_DIM),
            "timestep": at_time(0.5),
            "position_ids": torch.cat([torch.zeros(TOKENS, 3), grid()]),
        },
    ),
    Entry(
        "LongCatImageTransformer2DModel",
        tiny("LongCatImageTransformer2DModel", **_FLUX, pooled_projection_dim=POOLED_DIM),
        lambda: flow_inputs(16),
    ),
    Entry(
        "NucleusMoEImageTransformer2DModel",
        tiny(
            "NucleusMoEImageTransformer2DModel",
            in_channels=16,
            out_channels=4,
            num_layers=5,
            attention_head_dim=12,
            num_attention_heads=2,
            joint_attention_dim=TEXT_DIM,
            axes_dims_rope=(4, 4, 4),
            num_experts=2,
            capacity_factors=1.0,
            moe_intermediate_dim=16,
        ),
        lambda: {
            "hidden_states": rand(1, 16, 16),
            "encoder_hidden_states": text(),
            "encoder_hidden_states_mask": mask(dtype=torch.bool),
            "timestep": at_time(0.5),
            "img_shapes": [(1, 4, 4)],
        },
    ),
    Entry(
        "OvisImageTransformer2DModel",
        tiny("OvisImageTransformer2DModel", **_FLUX | {"out_channels": 16}),
        lambda: flow_inputs(16),
    ),
    Entry(
        "QwenImage21Transformer2DModel",
        tiny(
            "QwenImage21Transformer2DModel",
            in_channels=16,
            out_channels=4,
            num_layers=3,
            attention_head_dim=12,
            num_attention_heads=2,
            context_in_dim=TEXT_DIM,
            axes_dims_rope=(4, 4, 4),
        ),
        lambda: {
            "hidden_states": rand(1, 16, 16),
            "encoder_hidden_states": text(),
            "timestep": at_time(0.5),
            "img_shapes": [[(1, 4, 4)]],
            "img_mask": torch.tensor([[False] * TOKENS + [True] * 4]),
        },
    ),
    Entry(
        "QwenImageTransformer2DModel",
        models.qwen_image,
        lambda: {
            "hidden_states": rand(1, 16, 16),
            "encoder_hidden_states": text(),
            "encoder_hidden_states_mask": mask(),
            "timestep": at_time(0.5),
            "img_shapes": [[(1, 4, 4)]],
        },
    ),
)
