"""Where each known denoiser keeps its blocks and how they carry the streams, by class name.

Nothing is imported from the libraries that define these classes. To add a model, add its stacks to
`DENOISERS` and, if its block class is new, one line to `BLOCKS`; both are checked against the real
module when it is patched.
"""

from dataclasses import dataclass

from accel.sites import BlockIO


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A denoiser: its stacks of transformer blocks in running order, or a UNet's paths.

    Attributes:
        stacks: attribute paths of `ModuleList`s, first to run first.
        interleaved: whether they run in turns, a block of each, instead of one after the other.
        direct: whether no block needs outputs of blocks other than the one before it.
        unet: whether the model has `down_blocks`, `mid_block` and `up_blocks` instead.
    """

    stacks: tuple[str, ...] = ()
    interleaved: bool = False
    direct: bool = True
    unet: bool = False


_CONTEXT = "encoder_hidden_states"
ONE_STREAM = BlockIO()
HIDDEN_FIRST = BlockIO(hidden_index=0, context=_CONTEXT, context_index=1)
CONTEXT_FIRST = BlockIO(hidden_index=1, context=_CONTEXT, context_index=0)

_TWO_STACKS = ModelSpec(("transformer_blocks", "single_transformer_blocks"))
_ONE_STACK = ModelSpec(("transformer_blocks",))
_UNET = ModelSpec(unet=True)

DENOISERS: dict[str, ModelSpec] = {
    "AllegroTransformer3DModel": _ONE_STACK,
    "AudioLDM2UNet2DConditionModel": _UNET,
    "AuraFlowTransformer2DModel": ModelSpec(
        ("joint_transformer_blocks", "single_transformer_blocks")
    ),
    "ChromaTransformer2DModel": _TWO_STACKS,
    "CogVideoXTransformer3DModel": _ONE_STACK,
    "CogView4Transformer2DModel": _ONE_STACK,
    "Cosmos3OmniTransformer": ModelSpec(("layers",)),
    "DiTTransformer2DModel": _ONE_STACK,
    "FluxTransformer2DModel": _TWO_STACKS,
    "Flux2Transformer2DModel": _TWO_STACKS,
    # Its later half gets what its earlier half returned.
    "HunyuanDiT2DModel": ModelSpec(("blocks",), direct=False),
    "HunyuanImageTransformer2DModel": _TWO_STACKS,
    "HunyuanVideoTransformer3DModel": _TWO_STACKS,
    "I2VGenXLUNet": _UNET,
    "Kandinsky3UNet": _UNET,
    "LTXVideoTransformer3DModel": _ONE_STACK,
    "LatteTransformer3DModel": ModelSpec(
        ("transformer_blocks", "temporal_transformer_blocks"), interleaved=True
    ),
    "MochiTransformer3DModel": _ONE_STACK,
    "PixArtTransformer2DModel": _ONE_STACK,
    "QwenImageTransformer2DModel": _ONE_STACK,
    "SD3Transformer2DModel": _ONE_STACK,
    "SanaTransformer2DModel": _ONE_STACK,
    "StableCascadeUNet": _UNET,
    "UNet1DModel": _UNET,
    "UNet2DConditionModel": _UNET,
    "UNet2DModel": _UNET,
    "UNet3DConditionModel": _UNET,
    "UNetControlNetXSModel": _UNET,
    "UNetMotionModel": _UNET,
    "UNetSpatioTemporalConditionModel": _UNET,
    "WanTransformer3DModel": ModelSpec(("blocks",)),
}

BLOCKS: dict[str, BlockIO] = {
    "AllegroTransformerBlock": ONE_STREAM,
    "AuraFlowJointTransformerBlock": CONTEXT_FIRST,
    "AuraFlowSingleTransformerBlock": ONE_STREAM,
    "BasicTransformerBlock": ONE_STREAM,
    "ChromaSingleTransformerBlock": ONE_STREAM,
    "ChromaTransformerBlock": CONTEXT_FIRST,
    "CogVideoXBlock": HIDDEN_FIRST,
    "CogView4TransformerBlock": HIDDEN_FIRST,
    "Cosmos3VLTextMoTDecoderLayer": BlockIO("gen_seq", 1, "und_seq", 0),
    "Flux2SingleTransformerBlock": ONE_STREAM,
    "Flux2TransformerBlock": CONTEXT_FIRST,
    "FluxSingleTransformerBlock": CONTEXT_FIRST,
    "FluxTransformerBlock": CONTEXT_FIRST,
    "HunyuanDiTBlock": ONE_STREAM,
    "HunyuanImageSingleTransformerBlock": HIDDEN_FIRST,
    "HunyuanImageTransformerBlock": HIDDEN_FIRST,
    "HunyuanVideoSingleTransformerBlock": HIDDEN_FIRST,
    "HunyuanVideoTokenReplaceSingleTransformerBlock": HIDDEN_FIRST,
    "HunyuanVideoTokenReplaceTransformerBlock": HIDDEN_FIRST,
    "HunyuanVideoTransformerBlock": HIDDEN_FIRST,
    "JointTransformerBlock": CONTEXT_FIRST,
    "LTXVideoTransformerBlock": ONE_STREAM,
    "MochiTransformerBlock": HIDDEN_FIRST,
    "QwenImageTransformerBlock": CONTEXT_FIRST,
    "SanaTransformerBlock": ONE_STREAM,
    "WanTransformerBlock": ONE_STREAM,
}

# Models that have blocks, but no use for methods that work between denoising steps, and why.
REFUSED: dict[str, str] = {
    "AnyFlowFARTransformer3DModel": (
        "it makes a video piece by piece and keeps each piece as keys and values that its blocks "
        "write, so blocks that are skipped would be missing from what follows"
    ),
    "DualTransformer2DModel": "it is a part of a UNet's blocks, not a denoiser",
    "MiniMaxMusic3RVQDepthDecoder": "it writes tokens one after the other and denoises nothing",
    "RFD4ProteinaTransformer": (
        "it runs its blocks several times a call and updates a second representation between them"
    ),
}

# Attribute names of a block's self-attention (in joint models the attention over both streams), of
# its cross-attention (unless the module's own `is_cross_attention` denies it), and of its MLPs.
ATTENTION_NAMES = ("attn", "attn1")
CROSS_ATTENTION_NAMES = ("attn2", "cross_attn")
MLP_NAMES = ("ff", "ffn", "ff_context", "img_mlp", "txt_mlp")
# Attribute names of the parts of a model that attend over frames.
TEMPORAL_NAMES = (
    "motion_modules",
    "temp_attentions",
    "temporal_transformer_blocks",
    "transformer_in",
)
# Blocks that hold a UNet's attention.
UNET_BLOCKS = (
    "BasicTransformerBlock",
    "FreeNoiseTransformerBlock",
    "TemporalBasicTransformerBlock",
)
# Pipeline components that may hold a denoiser of a class not in the table.
DENOISER_COMPONENTS = (
    "transformer",
    "transformer_2",
    "unconditional_transformer",
    "unet",
    "prior",
)
