"""Methods that skip work between denoising steps by reusing or forecasting features."""

from caching.db_cache import DBCache
from caching.faster_cache import FasterCache
from caching.first_block_cache import FirstBlockCache
from caching.pab import PAB
from caching.predictor import Hold, Newton, Predictor
from caching.taylor_seer import TaylorSeer

__all__ = [
    "PAB",
    "DBCache",
    "FasterCache",
    "FirstBlockCache",
    "Hold",
    "Newton",
    "Predictor",
    "TaylorSeer",
]
