"""What kernels become on GPUs that are not there: registers, memory, instructions; compiled.json.

The table is written by `python -m tests.kernels.compile_matrix`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.assembly import Case
from tests.kernels.compile_matrix import TABLE, every, representative

ROOT = Path(__file__).resolve().parents[2]
# Bytes that a block may have: Hopper and Blackwell 227 KB, Ampere 163, AMD's compute units 64.
SHARED = {"sm80": 163 << 10, "sm90": 227 << 10, "sm100": 227 << 10, "gfx942": 64 << 10}

Table = dict[str, dict[str, Any]]


def _compiled(*arguments: str) -> Table:
    """Compiles in another process, since Triton's interpreter has replaced the compiler here."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    module = ["-W", "ignore", "-m", "tests.kernels.compile_matrix", "--print", *arguments]
    run = subprocess.run(
        [sys.executable, *module],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    made: Table = json.loads(run.stdout)
    return made


def _recorded() -> dict[str, Table]:
    tables: dict[str, Table] = json.loads(TABLE.read_text("utf-8"))
    return tables


def _assert_fits(case: Case, made: dict[str, Any]) -> None:
    assert made["spilt"] == 0, case.key
    assert made["registers"] <= 255, case.key
    assert made["shared"] <= SHARED[case.arch], case.key
    missing = set(case.wants) - set(made["instructions"])
    assert missing == set(), case.key


def test_every_recorded_kernel_fits_and_uses_the_hardware() -> None:
    cases = {case.key: case for case in every()}
    for version, table in _recorded().items():
        assert table.keys() <= cases.keys(), version
        for key, made in table.items():
            _assert_fits(cases[key], made)


def test_the_table_holds_every_kernel_for_one_version_of_triton() -> None:
    keys = {case.key for case in every()}
    assert any(table.keys() == keys for table in _recorded().values())
    assert {case.key for case in representative()} <= keys


def _assert_as_recorded(cases: list[Case], made: Table) -> None:
    import triton

    assert made.keys() == {case.key for case in cases}
    for case in cases:
        _assert_fits(case, made[case.key])
    recorded = _recorded().get(triton.__version__)
    if recorded is None:
        pytest.skip(f"they fit; Triton {triton.__version__} has no table to compare with")
    assert made == {case.key: recorded[case.key] for case in cases}


@pytest.mark.timeout(900)
def test_a_kernel_of_each_kind_compiles_as_recorded() -> None:
    _assert_as_recorded(representative(), _compiled("--representative"))


@pytest.mark.slow
@pytest.mark.skipif(
    "ACCEL_ALL_KERNELS" not in os.environ, reason="takes many minutes: set ACCEL_ALL_KERNELS"
)
@pytest.mark.timeout(3600)
def test_all_kernels_compile_as_recorded() -> None:
    _assert_as_recorded(list(every()), _compiled())
