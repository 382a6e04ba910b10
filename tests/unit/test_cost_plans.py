"""What a plan is predicted to run and hold is what it runs and holds."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import accel
from accel.cli import main
from accel.cost import amount, predict
from accel.errors import AccelUnsupportedError, ConflictError, OptionError
from accel.latency import Device
from accel.method import Method, Only
from accel.observe import observe
from accel.presets import resolve
from accel.work import Entry, Part, Run, Work
from caching import (
    PAB,
    DeepCache,
    FasterDiffusion,
    FirstBlockCache,
    FoCa,
    LinearPlan,
    TaylorSeer,
)
from tests.tiny import CASES
from tests.tiny.cases import Request
from tests.tiny.observe import traces
from tests.unit.tiny_pictures import save_folder

STEPS = 10
TOY = Device(
    name="toy",
    dtype="float32",
    torch="2",
    matmul=1e6,
    attention=1e6,
    convolution=1e6,
    bandwidth=1e30,
    launch_s=1e-30,
    watts=3.0,
)


@pytest.fixture(autouse=True)
def _no_device_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def arguments(name: str, **changed: Any) -> dict[str, Any]:
    """Returns the arguments with which `Case.run` calls this case's pipeline."""
    case = CASES[name]
    height, width = case.sizes["a"]
    request = Request(0, STEPS, height, width, 1, case.guidance, 0)
    steps = {"num_inference_steps": STEPS, "generator": request.generators()}
    return case.arguments(request) | steps | changed


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("flux", LinearPlan(share=0.5, predictor=FoCa())),
        ("flux", TaylorSeer(interval=3, min_steps=0)),
        ("sd3", LinearPlan(compute=(0, 1, 4, 9), steps=STEPS)),
        ("wan", TaylorSeer(interval=3, target="stack", min_steps=0)),
        ("wan", PAB(spatial=2, cross=3, mlp=2, mlp_blocks=1, min_steps=0)),
        ("mochi", LinearPlan(share=0.5)),
        ("sd15", DeepCache(interval=2)),
        ("sdxl", DeepCache(interval=3, block=1, layer=1)),
        ("sd15", FasterDiffusion(every=3)),
    ],
    ids=str,
)
def test_a_static_plan_runs_and_holds_what_was_predicted(name: str, method: Method) -> None:
    case = CASES[name]
    pipe = case.make()
    found = predict(pipe, method, **arguments(name))
    whole = sum(found.parts.values())
    assert found.plain.flops == STEPS * whole
    limit = accel.LightCache(swap=False, budget="1GiB")
    with accel.patch(pipe, method, memory=limit) as handle:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            case.run(pipe, steps=STEPS)
        report = handle.report
    assert found.planned.flops == counter.get_total_flops() < found.plain.flops
    assert (found.evaluations, found.evaluations * found.calls) == (report.steps, report.calls)
    assert found.held == report.most_on_device > 0
    assert found.notes == ()


def test_neutral_methods_save_and_hold_nothing() -> None:
    found = predict(CASES["wan"].make(), PAB().neutral(), **arguments("wan"))
    assert found.speedup == 1
    assert found.held == 0
    few = predict(CASES["wan"].make(), PAB(min_steps=STEPS), **arguments("wan"))
    assert (few.speedup, few.held) == (1, 0)


def test_a_plan_of_a_share_of_a_toys_steps_costs_that_share() -> None:
    entries = {
        "": Entry({Part.REST: 10.0}),
        "a": Entry({Part.MLP: 60.0}),
        "b": Entry({Part.CORE: 30.0}),
    }
    work = Work("Toy", entries)
    run = Run.of(work, 4).without(["a", "b"], [1, 2, 3])
    assert [each.total for each in run.evaluations] == [100, 10, 10, 10]
    assert run.flops == 130
    halved = run.changed(lambda each: each.scaled({Part.CORE: 0.5}), range(4))
    assert [each.total for each in halved.evaluations] == [85, 10, 10, 10]
    assert run.whole is work


def test_seconds_and_joules_follow_from_the_device() -> None:
    found = predict(CASES["flux"].make(), LinearPlan(share=0.5), device=TOY, **arguments("flux"))
    assert found.plain.seconds == pytest.approx(found.plain.flops / 1e6)
    assert found.planned.seconds == pytest.approx(found.planned.flops / 1e6)
    assert found.speedup == pytest.approx(found.plain.flops / found.planned.flops)
    assert found.planned.joules == pytest.approx(3 * found.planned.flops / 1e6)
    shown = str(found)
    assert "J in the denoiser instead of" in shown
    assert f"{found.speedup:.2f}x predicted" in shown
    assert "attention core" in shown
    assert json.loads(json.dumps(found.to_dict()))["speedup"] == found.speedup


def test_without_a_measured_device_flops_are_predicted_and_said_to_be() -> None:
    found = predict(CASES["flux"].make(), **arguments("flux"))
    assert found.planned == found.plain
    assert found.plain.seconds is None
    assert "in FLOPs, since this device was not measured" in str(found)
    assert "unknown: the device does not tell its power" in str(found)


def test_a_method_that_decides_at_run_time_says_that_it_cannot_know() -> None:
    found = predict(CASES["flux"].make(), FirstBlockCache(), **arguments("flux"))
    assert found.speedup == 1
    assert found.notes == (
        "FirstBlockCache decides while it generates; counted as if it left out nothing",
    )


def test_a_method_for_another_denoiser_costs_this_one_nothing() -> None:
    pipe = CASES["wan_two_stage"].make()
    plan = Only(denoiser="transformer_2", method=LinearPlan(share=0.5))
    found = predict(pipe, plan, **arguments("wan_two_stage"))
    assert (found.methods, found.speedup) == ((), 1)
    assert found.notes == ("transformer_2 is not counted: the first evaluation does without it",)
    mine = predict(
        pipe, Only(denoiser="transformer", method=LinearPlan(share=0.5)), **arguments("wan")
    )
    assert mine.speedup > 1.5


def test_presets_are_priced_for_the_kind_of_model() -> None:
    for name, method in (("flux", "LinearPlan"), ("sd15", "DeepCache")):
        found = predict(CASES[name].make(), *resolve(("balanced",)), **arguments(name))
        assert found.methods[0].startswith(method)
        assert found.speedup > 1


def test_observing_leaves_the_pipeline_as_it_was() -> None:
    pipe = CASES["sd15"].make()
    before, scheduler = traces(pipe.unet), set(vars(pipe.scheduler))
    seen = observe(pipe, **arguments("sd15"))
    assert traces(pipe.unet) == before
    assert (
        scheduler <= set(vars(pipe.scheduler)) <= scheduler | {"num_inference_steps", "timesteps"}
    )
    # Guidance in one call of two samples.
    assert (seen.name, len(seen.calls), seen.calls[0].batch) == ("unet", 1, 2)
    assert (seen.evaluations, len(seen.times)) == (STEPS, STEPS)
    assert seen.times[0] > seen.times[-1] > 0


def test_a_larger_picture_more_samples_and_guidance_cost_more() -> None:
    pipe = CASES["wan"].make()
    small = observe(pipe, **arguments("wan"))
    wide = observe(pipe, **arguments("wan", width=128))
    assert wide.calls[0].tokens == 2 * small.calls[0].tokens
    long = observe(pipe, **arguments("wan", num_frames=9))
    assert long.calls[0].tokens > small.calls[0].tokens
    alone = observe(pipe, **arguments("wan", guidance_scale=1.0))
    assert (len(small.calls), len(alone.calls)) == (2, 1)


def test_what_cannot_be_observed_is_refused() -> None:
    pipe = CASES["flux"].make()
    with pytest.raises(OptionError, match="is a denoiser, and nobody knows what it will be called"):
        observe(pipe.transformer)
    with pytest.raises(
        OptionError, match=r"FluxPipeline does not take this call \(prompt, height\)"
    ):
        observe(pipe, prompt=7, height=64)
    with pytest.raises(OptionError, match="unexpected keyword argument 'depth'"):
        observe(pipe, **arguments("flux", depth=3))
    with accel.patch(pipe, FirstBlockCache()), pytest.raises(ConflictError, match="unpatch"):
        observe(pipe, **arguments("flux"))
    with pytest.raises(AccelUnsupportedError, match="called none of its denoisers"):
        observe(Idle(pipe.transformer))


class Idle:
    """A pipeline that never calls its denoiser."""

    def __init__(self, transformer: nn.Module) -> None:
        self.components = {"transformer": transformer}

    def __call__(self) -> None:
        """Does nothing."""


def test_the_status_predicts_from_the_first_generation_on() -> None:
    case = CASES["wan"]
    pipe = case.make()
    plan = LinearPlan(share=0.5)
    expected = predict(pipe, plan, **arguments("wan"))
    with accel.patch(pipe, plan) as handle:
        assert handle.status().cost == ()
        case.run(pipe, steps=STEPS)
        (line,) = handle.status().cost
        assert line.startswith(f"WanTransformer3DModel: {expected.summary}; ")
        assert line.endswith(" s measured")
        assert f"cost      {line}" in str(handle.status())
        works = next(iter(handle._engines.values())).session.seen.works
        assert handle.status().cost == (line,)
        assert next(iter(handle._engines.values())).session.seen.works is works
    assert handle.status().cost == ()


def test_the_status_says_why_a_models_cost_is_unknown() -> None:
    case = CASES["mochi"]
    pipe = case.make()
    with accel.patch(pipe, LinearPlan(share=0.5)) as handle:
        case.run(pipe, steps=3)
        (line,) = handle.status().cost
    assert line.startswith("MochiTransformer3DModel: unknown. MochiTransformer3DModel looks at")


def test_amounts_read_well() -> None:
    assert [amount(number) for number in (74.4e12, 2.5e9, 12.0)] == ["74.4 T", "2.5 G", "12 "]


def test_the_doctor_predicts_what_a_model_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_folder(tmp_path / "tiny-flux")
    line = ["doctor", "--model", str(folder), "--steps", "10", "--size", "64", "--device", "cpu"]
    assert main([*line, "--no-measure", "--method", "LinearPlan(share=0.5)"]) == 0
    shown = capsys.readouterr().out
    assert "10 evaluations" in shown
    assert "x predicted (in FLOPs" in shown
    assert main([*line, "--no-measure", "--json", "--method", "LinearPlan(share=1.0)"]) == 0
    assert json.loads(capsys.readouterr().out)["forecast"]["speedup"] == 1


def test_the_doctor_asks_for_the_model_that_a_method_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--method", "PAB()"]) == 2
    assert "need --model" in capsys.readouterr().err
