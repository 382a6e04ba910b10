"""Every tiny model, and how the classes that are refused are made to be asked."""

from typing import Any

from tests.coverage import images, others, packed, videos, wan
from tests.coverage.entry import Entry

_GROUPS = (
    packed.PACKED,
    images.IMAGES,
    wan.WAN,
    wan.HUNYUAN,
    videos.COG,
    videos.OTHER,
    others.SOUND,
    others.PARTS,
    others.OLD,
    others.KEYS,
)

ENTRIES: dict[str, Entry] = {entry.name: entry for group in _GROUPS for entry in group}

# Classes that are refused when they are patched, with what they cannot be made without. They are
# made without memory for their weights, since nobody calls them.
UNCALLED: dict[str, dict[str, Any]] = {
    "AnyFlowFARTransformer3DModel": {"num_layers": 2},
    "AudioLDM2UNet2DConditionModel": {"layers_per_block": 1},
    "DreamLiteUNetModel": {},
    "DualTransformer2DModel": {"in_channels": 32},
    "I2VGenXLUNet": {"layers_per_block": 1},
    "Kandinsky3UNet": {"layers_per_block": 1},
    "MiniMaxMusic3RVQDepthDecoder": {},
    "RFD4ProteinaTransformer": {"nlayers": 2},
    "StableCascadeUNet": {"down_num_layers_per_block": (1, 1), "up_num_layers_per_block": (1, 1)},
    "UNet1DModel": {},
    "UNet2DConditionModel": {"layers_per_block": 1},
    "UNet2DModel": {},
    "UNet3DConditionModel": {"layers_per_block": 1},
    "UNetControlNetXSModel": {},
    "UNetFlatConditionModel": {},
    "UNetMotionModel": {"layers_per_block": 1},
    "UNetSpatioTemporalConditionModel": {"layers_per_block": 1},
    "WuerstchenDiffNeXt": {"blocks": [1, 1, 1, 1]},
}
