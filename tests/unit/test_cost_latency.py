"""Seconds are three sums by hand, measured devices round-trip, and nothing measures by itself."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import accel
from accel import latency
from accel.errors import OptionError
from accel.latency import Device, calibrated, store, stored
from accel.power import joules, mean_watts
from accel.report import Report, device_name
from accel.work import Entry, Part, Run, Work

CPU = torch.device("cpu")
TOY = Device(
    name=device_name(CPU),
    dtype="float32",
    torch=torch.__version__,
    matmul=100.0,
    attention=50.0,
    convolution=10.0,
    bandwidth=1000.0,
    launch_s=0.01,
    watts=20.0,
)
WORK = Work(
    "Toy",
    {
        "": Entry({Part.MLP: 200.0, Part.REST: 100.0}, 400.0, 3.0, 600.0),
        "attn": Entry({Part.CORE: 100.0, Part.CONVOLUTION: 40.0}, 1000.0, 2.0),
    },
)


def never(device: torch.device, dtype: torch.dtype) -> Device:
    """Fails: nobody asked for a measurement."""
    raise AssertionError("measured")


def test_a_toys_seconds_are_those_computed_by_hand() -> None:
    # 300/100 + 100/50 + 40/10, (400 + 1000 + 600)/1000, and five launches.
    assert TOY.seconds(WORK) == pytest.approx(3 + 2 + 4 + 2 + 0.05)
    assert TOY.seconds_of(Run.of(WORK, 3)) == pytest.approx(3 * 11.05)
    assert TOY.joules(11.05) == pytest.approx(221)
    assert dataclasses.replace(TOY, watts=None).joules(11.05) is None


def test_a_report_moves_the_factor_to_where_its_prediction_is_right() -> None:
    report = Report(device=TOY.name, denoiser_seconds=22.1)
    refined = TOY.refined(report, TOY.seconds(WORK))
    assert refined.seconds(WORK) == pytest.approx(22.1)
    again = refined.refined(report, refined.seconds(WORK))
    assert again.factor == pytest.approx(refined.factor)


def test_a_report_of_something_else_refines_nothing() -> None:
    with pytest.raises(OptionError, match="on cuda:0; expected some on"):
        TOY.refined(Report(device="cuda:0", denoiser_seconds=1.0), 1.0)
    with pytest.raises(OptionError, match="on no device"):
        TOY.refined(Report(), 1.0)
    with pytest.raises(OptionError, match="100 s where 1 s were predicted"):
        TOY.refined(Report(device=TOY.name, denoiser_seconds=100.0), 1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), "fast"])
def test_a_rate_is_a_number_above_zero(value: object) -> None:
    with pytest.raises(OptionError, match="Device: matmul is"):
        dataclasses.replace(TOY, matmul=value)


def test_a_measured_device_is_read_back_instead_of_measured_again(tmp_path: Path) -> None:
    assert stored(CPU, torch.float32, folder=tmp_path) is None
    first = calibrated(CPU, torch.float32, folder=tmp_path, measuring=lambda *_: TOY)
    assert first == TOY
    assert calibrated(CPU, torch.float32, folder=tmp_path, measuring=never) == TOY
    # Another dtype, and another torch, are other devices.
    assert stored(CPU, torch.bfloat16, folder=tmp_path) is None
    store(dataclasses.replace(TOY, torch="1.0", matmul=1.0), folder=tmp_path)
    assert stored(CPU, torch.float32, folder=tmp_path) == TOY
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"name": "x"}', json.dumps({**dataclasses.asdict(TOY), "matmul": 0})],
)
def test_a_spoilt_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    path = store(TOY, folder=tmp_path)
    path.write_text(text)
    assert stored(CPU, torch.float32, folder=tmp_path) is None
    assert calibrated(CPU, torch.float32, folder=tmp_path, measuring=lambda *_: TOY) == TOY
    assert stored(CPU, torch.float32, folder=tmp_path) == TOY


def test_a_file_of_another_device_under_this_name_is_not_believed(tmp_path: Path) -> None:
    path = store(TOY, folder=tmp_path)
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(TOY, name="other"))))
    assert stored(CPU, torch.float32, folder=tmp_path) is None


def test_where_nothing_can_be_written_the_device_is_measured_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert calibrated(CPU, torch.float32, folder=file, measuring=lambda *_: TOY) == TOY


def test_the_cache_is_in_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert latency.cache_folder() == tmp_path / "accel-diffusion" / "devices"
    store(TOY)
    assert stored(CPU, torch.float32) == TOY
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert latency.cache_folder() == Path.home() / ".cache" / "accel-diffusion" / "devices"


def test_measuring_gives_every_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "_SAMPLE_S", 0.0)
    found = latency.measure(CPU, torch.float32)
    assert (found.name, found.dtype, found.torch) == (TOY.name, "float32", torch.__version__)
    assert min(found.matmul, found.attention, found.convolution, found.bandwidth) > 0
    assert found.launch_s > 0
    assert found.factor == 1.0


def test_importing_measures_and_writes_nothing(tmp_path: Path) -> None:
    program = (
        "import accel, accel.cli, accel.latency, torch, sys\n"
        "assert 'torch.utils.flop_counter' not in sys.modules\n"
        "assert 'triton' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(accel.__file__).parents[1],
        env={"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert list(tmp_path.iterdir()) == []


def packages(root: Path, *counts: str) -> Path:
    """Returns a folder laid out as Linux lays out its energy counters."""
    for index, count in enumerate(counts):
        for name in (f"intel-rapl:{index}", f"intel-rapl:{index}:0"):
            (root / name).mkdir(parents=True)
            (root / name / "energy_uj").write_text(count)
    return root


def test_energy_of_all_packages_adds_up_and_parts_of_them_do_not_count_twice(
    tmp_path: Path,
) -> None:
    assert joules(packages(tmp_path, "1500000\n", "500000\n")) == pytest.approx(2.0)


def test_unreadable_counters_leave_the_power_unknown(tmp_path: Path) -> None:
    assert joules(tmp_path) is None
    assert joules(packages(tmp_path, "many")) is None
    assert mean_watts(CPU, lambda: None, 0.0, rapl=tmp_path) is None


def test_a_counter_that_starts_anew_leaves_the_power_unknown(tmp_path: Path) -> None:
    root = packages(tmp_path, "5000000")
    counter = root / "intel-rapl:0" / "energy_uj"
    assert mean_watts(CPU, lambda: counter.write_text("1"), 0.001, rapl=root) is None
    counter.write_text("0")
    watts = mean_watts(CPU, lambda: counter.write_text("3000000"), 0.001, rapl=root)
    assert watts is not None
    assert watts > 0


def test_devices_that_tell_no_power_have_none() -> None:
    assert mean_watts(torch.device("mps"), lambda: None, 0.0) is None
