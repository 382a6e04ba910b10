"""Caches of other libraries, found and removed."""

import pytest
from diffusers import FirstBlockCacheConfig, apply_first_block_cache
from torch import nn

from accel.errors import ConflictError
from accel.foreign import require_no_foreign_cache
from tests.tiny import CASES


def test_a_hook_applied_without_the_mixin_is_found_and_removed():
    transformer = CASES["flux"].make().transformer
    apply_first_block_cache(transformer, FirstBlockCacheConfig(threshold=0.5))
    with pytest.raises(ConflictError, match="hook of diffusers"):
        require_no_foreign_cache(None, transformer, replace=False)
    require_no_foreign_cache(None, transformer, replace=True)
    require_no_foreign_cache(None, transformer, replace=False)


def test_a_cache_that_cannot_be_removed_is_said():
    class Stubborn(nn.Module):
        is_cache_enabled = True

        def disable_cache(self):
            return None

    with pytest.raises(ConflictError, match="by hand"):
        require_no_foreign_cache(None, Stubborn(), replace=True)


def test_a_clean_module_passes():
    require_no_foreign_cache(None, nn.Linear(1, 1), replace=False)
