"""Sparse attention: fewer score tiles, chosen by clusters, blocks, bands or single tokens."""

from sparse_attn.jenga import Jenga
from sparse_attn.radial import Radial
from sparse_attn.rettention import Rettention
from sparse_attn.sparge_attn import SpargeAttn
from sparse_attn.svg1 import SVG1
from sparse_attn.svg2 import SVG2
from sparse_attn.svg_ear import SVGEAR
from sparse_attn.token_sparse import TokenSparse
from sparse_attn.twilight import Twilight

__all__ = [
    "SVG1",
    "SVG2",
    "SVGEAR",
    "Jenga",
    "Radial",
    "Rettention",
    "SpargeAttn",
    "TokenSparse",
    "Twilight",
]
