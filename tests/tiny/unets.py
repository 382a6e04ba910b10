"""Tiny UNets of every class whose features skip alike, and of some whose features do not."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0
from diffusers.models.embeddings import ImageProjection, MultiIPAdapterImageProjection
from diffusers.pipelines.audioldm2.modeling_audioldm2 import AudioLDM2UNet2DConditionModel
from torch import Tensor

from tests.tiny.models import POOLED_DIM, TEXT_DIM, Denoiser, shaken, unet, unet_xl

Inputs = dict[str, Any]
FRAMES = 2


def _noise(salt: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(salt))


def image_inputs(batch: int = 1, height: int = 8, width: int = 8) -> Inputs:
    """Returns latents of a picture and a prompt of three tokens."""
    return {
        "sample": _noise(1, batch, 4, height, width),
        "encoder_hidden_states": _noise(2, batch, 3, TEXT_DIM),
    }


def _video_inputs(batch: int = 1) -> Inputs:
    return {
        "sample": _noise(1, batch, 4, FRAMES, 8, 8),
        "encoder_hidden_states": _noise(2, batch, 3, TEXT_DIM),
    }


def _motion_inputs(batch: int = 1) -> Inputs:
    # The pipeline repeats the prompt for every frame.
    return _video_inputs(batch) | {"encoder_hidden_states": _noise(2, batch * FRAMES, 3, TEXT_DIM)}


def _xl_inputs(batch: int = 1) -> Inputs:
    added = {"text_embeds": _noise(3, batch, POOLED_DIM), "time_ids": _noise(4, batch, 6)}
    return image_inputs(batch) | {"added_cond_kwargs": added}


def _kandinsky(seed: int = 0) -> Denoiser:
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=4,
        norm_num_groups=4,
        encoder_hid_dim=TEXT_DIM,
        encoder_hid_dim_type="image_proj",
        addition_embed_type="image",
    )
    return shaken(model, seed)


def _kandinsky_inputs(batch: int = 1) -> Inputs:
    inputs = image_inputs(batch) | {"added_cond_kwargs": {"image_embeds": _noise(5, batch, 16)}}
    # Its text is made of the image embedding.
    return inputs | {"encoder_hidden_states": None}


def _uneven(seed: int = 0) -> Denoiser:
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 8, 16),
        layers_per_block=(2, 1, 2),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=2,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def _plain(seed: int = 0) -> Denoiser:
    model = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def _plain_inputs(batch: int = 1) -> Inputs:
    return {"sample": _noise(1, batch, 4, 8, 8)}


def _spatio_temporal(seed: int = 0) -> Denoiser:
    model = diffusers.UNetSpatioTemporalConditionModel(
        sample_size=8,
        in_channels=4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=3 * 4,
        cross_attention_dim=TEXT_DIM,
        num_attention_heads=(2, 4),
        num_frames=FRAMES,
    )
    return shaken(model, seed)


def _spatio_temporal_inputs(batch: int = 1) -> Inputs:
    return {
        "sample": _noise(1, batch, FRAMES, 4, 8, 8),
        "encoder_hidden_states": _noise(2, batch, 1, TEXT_DIM),
        "added_time_ids": _noise(3, batch, 3),
    }


def motion(seed: int = 0) -> Denoiser:
    """Returns an AnimateDiff shaped UNet: motion modules in every layer."""
    model = diffusers.UNetMotionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
        up_block_types=("UpBlockMotion", "CrossAttnUpBlockMotion"),
        cross_attention_dim=TEXT_DIM,
        num_attention_heads=2,
        motion_num_attention_heads=2,
        motion_max_seq_length=8,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def _three_dimensional(seed: int = 0) -> Denoiser:
    model = diffusers.UNet3DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def _i2vgen(seed: int = 0) -> Denoiser:
    model = diffusers.I2VGenXLUNet(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=4,
        num_attention_heads=None,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def _i2vgen_inputs(batch: int = 1) -> Inputs:
    return _video_inputs(batch) | {
        "fps": torch.full((batch,), 8),
        "image_latents": _noise(6, batch, 4, FRAMES, 8, 8),
        "image_embeddings": _noise(7, batch, TEXT_DIM),
    }


def _audio(seed: int = 0) -> Denoiser:
    model = AudioLDM2UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=(None, TEXT_DIM),
        attention_head_dim=2,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def _dreamlite(seed: int = 0) -> Denoiser:
    model = diffusers.DreamLiteUNetModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=(
            "DreamLiteCrossAttnNoSelfAttnDownBlock2D",
            "DreamLiteCrossAttnDownBlock2D",
        ),
        up_block_types=("DreamLiteCrossAttnUpBlock2D", "DreamLiteCrossAttnNoSelfAttnUpBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=2,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def three_levels(**config: Any) -> Denoiser:
    """Returns a UNet that has a plain and an attending block at either end of its way down."""
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=2,
        norm_num_groups=4,
        **config,
    )
    return shaken(model)


def with_ip_adapter() -> Denoiser:
    """Returns `three_levels` with an IP-Adapter for image embeddings of 12 numbers."""
    model = three_levels()
    processors = {}
    for index, (name, old) in enumerate(model.attn_processors.items()):
        if "attn2" not in name:
            processors[name] = old
            continue
        width = model.get_submodule(name.removesuffix(".processor")).inner_dim
        processor = IPAdapterAttnProcessor2_0(width, cross_attention_dim=16, num_tokens=(2,))
        processors[name] = shaken(processor, seed=index)
    model.set_attn_processor(processors)
    projection = shaken(ImageProjection(12, 16, num_image_text_embeds=2), seed=9)
    model.encoder_hid_proj = MultiIPAdapterImageProjection([projection])
    model.config.encoder_hid_dim_type = "ip_image_proj"
    return model


UNETS: dict[str, tuple[Callable[[], Denoiser], Callable[..., Inputs]]] = {
    "sd15": (unet, image_inputs),
    "sdxl": (unet_xl, _xl_inputs),
    "uneven": (_uneven, image_inputs),
    "kandinsky": (_kandinsky, _kandinsky_inputs),
    "unet2d": (_plain, _plain_inputs),
    "svd": (_spatio_temporal, _spatio_temporal_inputs),
    "animatediff": (motion, _motion_inputs),
    "unet3d": (_three_dimensional, _video_inputs),
    "i2vgen": (_i2vgen, _i2vgen_inputs),
    "audioldm2": (_audio, image_inputs),
    "dreamlite": (_dreamlite, image_inputs),
}
"""Each a maker of the model and one of its inputs but the timestep, by batch size."""


def _one_skip_a_block() -> Denoiser:
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 32),
        layers_per_block=2,
        down_block_types=("KDownBlock2D", "KCrossAttnDownBlock2D"),
        mid_block_type=None,
        up_block_types=("KCrossAttnUpBlock2D", "KUpBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=8,
        conv_in_kernel=1,
        conv_out_kernel=1,
        time_embedding_type="fourier",
        resnet_time_scale_shift="scale_shift",
        timestep_post_act="gelu",
        act_fn="gelu",
        norm_num_groups=None,
    )


def _second_stream() -> Denoiser:
    return diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(32, 32),
        layers_per_block=1,
        down_block_types=("SkipDownBlock2D", "AttnSkipDownBlock2D"),
        up_block_types=("AttnSkipUpBlock2D", "SkipUpBlock2D"),
        norm_num_groups=4,
    )


def _joined_between_blocks() -> Denoiser:
    return diffusers.Kandinsky3UNet(
        time_embedding_dim=16,
        groups=4,
        attention_head_dim=8,
        layers_per_block=3,
        block_out_channels=(16, 16, 16, 16),
        cross_attention_dim=16,
        encoder_hid_dim=16,
    )


def _cascade() -> Denoiser:
    return diffusers.StableCascadeUNet(
        in_channels=4,
        out_channels=4,
        block_out_channels=(16,),
        num_attention_heads=(2,),
        down_num_layers_per_block=(1,),
        up_num_layers_per_block=(1,),
        down_blocks_repeat_mappers=(1,),
        up_blocks_repeat_mappers=(1,),
        block_types_per_layer=(("SDCascadeResBlock",),),
        conditioning_dim=16,
        clip_text_pooled_in_channels=16,
        dropout=(0.0,),
    )


def _fused_with_control() -> Denoiser:
    return diffusers.UNetControlNetXSModel(
        sample_size=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(8, 16),
        norm_num_groups=4,
        cross_attention_dim=TEXT_DIM,
        num_attention_heads=2,
        ctrl_conditioning_embedding_out_channels=(4, 8),
        ctrl_block_out_channels=(8, 8),
        ctrl_num_attention_heads=2,
        ctrl_max_norm_num_groups=4,
    )


def _one_dimensional() -> Denoiser:
    return diffusers.UNet1DModel(
        sample_size=16,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock1D", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1D"),
        extra_in_channels=16,
    )


REFUSED: dict[str, tuple[Callable[[], Denoiser], str]] = {
    "one_skip_a_block": (_one_skip_a_block, "one feature a block"),
    "second_stream": (_second_stream, "second stream"),
    "kandinsky3": (_joined_between_blocks, "no list of resnets in down_blocks.0"),
    "cascade": (_cascade, "no list of resnets in down_blocks.0"),
    "control_xs": (_fused_with_control, "no list of resnets in down_blocks.0"),
    "unet1d": (_one_dimensional, "features to its way up, which takes"),
}
"""Each a maker of a model that cannot be served, and the reason given."""
