"""The doctor tries everything, dies of nothing, and has advice for what is not right."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from accel import doctor, siblings


def by_name(findings: tuple[doctor.Finding, ...]) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in findings}


@pytest.fixture(scope="module")
def examined() -> dict[str, doctor.Finding]:
    """Returns what the doctor finds on this machine."""
    return by_name(doctor.examine())


def test_this_machine_is_healthy(examined: dict[str, doctor.Finding]) -> None:
    assert doctor.healthy(tuple(examined.values()))
    assert examined["torch"].detail == torch.__version__
    assert {"python", "accel", "diffusers", "cpu", "accelerator", "triton", "xformers"} <= (
        examined.keys()
    )
    assert all(examined[name].state == "ok" for name in siblings.SIBLINGS)


def test_everything_that_is_not_right_has_advice(examined: dict[str, doctor.Finding]) -> None:
    assert [f.name for f in examined.values() if f.state != "ok" and not f.advice] == []


def test_findings_are_a_table_and_valid_json(examined: dict[str, doctor.Finding]) -> None:
    findings = tuple(examined.values())
    whole = json.loads(doctor.to_json(findings))
    assert whole["healthy"] is True
    assert [entry["name"] for entry in whole["findings"]] == list(examined)
    table = doctor.table(findings)
    assert all(finding.detail in table and finding.advice in table for finding in findings)


def test_a_missing_library_is_broken_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_NEEDED", ("torch", "no_such_library"))
    findings = doctor.examine()
    assert by_name(findings)["no_such_library"].advice == "pip install --upgrade no_such_library"
    assert not doctor.healthy(findings)


@pytest.mark.parametrize("name", ["email", "no_such_package"])
def test_a_shadowed_package_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(siblings, "SIBLINGS", ("caching", name))
    found = by_name(doctor.examine())
    assert found["caching"].state == "ok"
    assert found[name].state == "broken"
    assert found[name].detail.startswith(f"`import {name}` finds ")


def test_the_other_project_called_accel_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.metadata.packages_distributions", lambda: {"accel": ["accel-diffusion", "accel"]}
    )
    assert by_name(doctor.examine())["name"].state == "warning"


def test_more_threads_than_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    assert "set_num_threads" in by_name(doctor.examine())["cpu"].advice


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


class _Driver:
    """A Triton driver with or without a device."""

    def __init__(self, *, works: bool) -> None:
        self.active = self
        self.works = works

    def get_current_target(self) -> str:
        """Returns the device, or raises as Triton does."""
        if not self.works:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return "cuda:90"


@pytest.mark.parametrize(("works", "state"), [(True, "ok"), (False, "warning")])
def test_triton_is_tried_and_not_only_imported(
    monkeypatch: pytest.MonkeyPatch, works: bool, state: str
) -> None:
    monkeypatch.setitem(sys.modules, "triton", module("triton", __version__="3.9"))
    runtime = module("triton.runtime", driver=_Driver(works=works))
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    assert by_name(doctor.examine())["triton"].state == state


@pytest.mark.parametrize(("works", "state"), [(True, "ok"), (False, "warning")])
def test_xformers_is_tried_and_not_only_imported(
    monkeypatch: pytest.MonkeyPatch, works: bool, state: str
) -> None:
    def attention(*tensors: torch.Tensor) -> torch.Tensor:
        if not works:
            raise NotImplementedError("No operator found for `memory_efficient_attention`")
        return tensors[0]

    monkeypatch.setitem(sys.modules, "xformers", module("xformers", __version__="0.0.40"))
    ops = module("xformers.ops", memory_efficient_attention=attention)
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    assert by_name(doctor.examine())["xformers"].state == state


def test_a_library_that_fails_on_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xformers", module("xformers"))
    found = by_name(doctor.examine())["xformers"]
    assert found.state == "broken"
    assert "AttributeError" in found.detail


def test_an_empty_zoo_is_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel.zoo.names", lambda: ())
    findings = doctor.examine()
    assert by_name(findings)["zoo"].state == "missing"
    assert doctor.healthy(findings)


def test_an_accelerator_that_cannot_multiply_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: "cpu")
    assert by_name(doctor.examine())["accelerator"].state == "ok"
    monkeypatch.setattr(torch, "ones", torch.zeros)
    assert by_name(doctor.examine())["accelerator"].state == "broken"
