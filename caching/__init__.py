"""Methods that skip work between denoising steps by reusing or forecasting features."""

from caching.bw_cache import BWCache
from caching.db_cache import DBCache
from caching.deep_cache import DeepCache
from caching.faster_cache import FasterCache
from caching.faster_diffusion import FasterDiffusion
from caching.first_block_cache import FirstBlockCache
from caching.forecasters import DMD, FoCa
from caching.linear_plan import LinearPlan
from caching.mag_cache import MagCache
from caching.pab import PAB
from caching.predictor import Hold, Newton, Predictor
from caching.taylor_seer import TaylorSeer
from caching.tea_cache import TeaCache
from caching.toca import ToCa

__all__ = [
    "DMD",
    "PAB",
    "BWCache",
    "DBCache",
    "DeepCache",
    "FasterCache",
    "FasterDiffusion",
    "FirstBlockCache",
    "FoCa",
    "Hold",
    "LinearPlan",
    "MagCache",
    "Newton",
    "Predictor",
    "TaylorSeer",
    "TeaCache",
    "ToCa",
]
