"""Kernels under test run on the GPU where there is one, and else under Triton's interpreter."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from tests.kernels.support import DEVICE

# Nothing here works where Triton does not exist.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        import triton.language as tl

        # tests/conftest.py comes first, except where a plugin imports Triton.
        assert type(tl.max).__name__ == "InterpretedFunction", (
            "Triton was imported before the tests could ask for its interpreter. "
            "Set TRITON_INTERPRET=1, or leave out the pytest plugin that imports it."
        )
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    """Fills what `torch.empty` returns with NaN, so that what a kernel leaves out shows."""
    if DEVICE != "cpu":  # some operations of CUDA refuse to work in this mode
        yield
        return
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
