"""Methods that skip work between denoising steps by reusing or forecasting features."""

from caching.db_cache import DBCache
from caching.deep_cache import DeepCache
from caching.faster_diffusion import FasterDiffusion
from caching.first_block_cache import FirstBlockCache
from caching.predictor import Hold, Newton, Predictor

__all__ = [
    "DBCache",
    "DeepCache",
    "FasterDiffusion",
    "FirstBlockCache",
    "Hold",
    "Newton",
    "Predictor",
]
