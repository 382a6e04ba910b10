"""Settings for the whole test run."""

import importlib.util
import sys
from pathlib import Path

# The test helpers are imported as `tests.…`, also where the root is not on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest
import torch

# Warnings that other libraries raise about themselves, each by its own words.
_FOREIGN_WARNINGS = (
    "ignore:`FluxPosEmbed` is deprecated:FutureWarning",
    "ignore:`Transformer2DModelOutput` is deprecated:FutureWarning",
    "ignore:Initializing zero-element tensors is a no-op:UserWarning",
    r"ignore:flex_attention called without torch\.compile\(\):UserWarning",
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    r"ignore:In CPU autocast, but the target dtype is not supported\.:UserWarning",
    # The interpreter of Triton 3.6, which numpy 2.4 is too new for.
    "ignore:Conversion of an array with ndim > 0 to a scalar is deprecated:DeprecationWarning",
)


def _import_triton_to_be_interpreted() -> None:
    # Triton decides at its first import whether its own functions are compiled or interpreted, and
    # other libraries may import it first. Without a GPU only the interpreter is of any use. The
    # variable goes again: only `tests/kernels` asks for kernels on a CPU.
    if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton.language")


_import_triton_to_be_interpreted()


def pytest_configure(config: pytest.Config) -> None:
    """Adds the filters after those of pyproject.toml, so that they win over its `error`."""
    for line in _FOREIGN_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Tiny tensors run fastest on one thread, and sums keep one order.
    torch.set_num_threads(1)
