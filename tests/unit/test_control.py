"""The control solves the same equation as the pipeline, meets the wanted time, leaves no trace."""

from collections.abc import Callable
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from torch import Tensor

from accel import control, metrics
from accel.bench import Ratio
from accel.errors import AccelUnsupportedError, OptionError
from accel.shot import Shot
from tests.unit.tiny_pictures import flux_pictures, shot

STEPS = 8


class GaussianFlow:
    """The exact velocity of the flow from noise to N(mean, deviation²), and where it ends."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.noise = torch.randn(1, 16, 32, generator=generator, dtype=torch.float64)
        self.mean = torch.linspace(-1.0, 1.0, 32, dtype=torch.float64)
        self.deviation = torch.linspace(0.05, 0.9, 32, dtype=torch.float64)
        self.end = self.mean + self.deviation * self.noise

    def velocity(self, x: Tensor, sigma: float) -> Tensor:
        kept, spread = 1.0 - sigma, self.deviation.square()
        centred = (x - kept * self.mean) / (kept**2 * spread + sigma**2)
        return sigma * centred - self.mean - kept * spread * centred

    def error(self, scheduler: Any, steps: int, mu: float = 0.9) -> float:
        """Returns the RMS distance to the exact end, stepping as FluxPipeline does."""
        if getattr(scheduler.config, "use_flow_sigmas", False):
            scheduler.set_timesteps(steps, mu=mu)
        else:
            scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
        scheduler.set_begin_index(0)
        x = self.noise.clone()
        for timestep in scheduler.timesteps:
            velocity = self.velocity(x, float(timestep) / 1000)
            x = scheduler.step(velocity, timestep, x, return_dict=False)[0]
        return float((x - self.end).square().mean().sqrt())


FLOWS = [
    {"use_dynamic_shifting": True},
    {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    {"shift": 3.0},
    {"shift": 1.0},
]


@pytest.mark.parametrize("config", FLOWS, ids=str)
def test_both_solvers_converge_to_the_known_end_of_a_flow(config: dict[str, Any]) -> None:
    own = diffusers.FlowMatchEulerDiscreteScheduler(**config)
    flow = GaussianFlow()
    assert flow.error(own, 500) < 5e-3
    # What remains is UniPC's rounding of timesteps down to 1/1000.
    assert flow.error(control.multistep(own), 500) < 1e-3


@pytest.mark.parametrize("config", FLOWS, ids=str)
@pytest.mark.parametrize("steps", [6, 8, 16])
def test_second_order_is_nearer_the_end_of_a_smooth_flow(
    config: dict[str, Any], steps: int
) -> None:
    own = diffusers.FlowMatchEulerDiscreteScheduler(**config)
    flow = GaussianFlow()
    assert flow.error(control.multistep(own), steps) < 0.92 * flow.error(own, steps)


@pytest.mark.parametrize(
    "config",
    [*FLOWS, {"use_dynamic_shifting": True, "shift_terminal": 0.05}, {"num_train_timesteps": 500}],
    ids=str,
)
@pytest.mark.parametrize("steps", [4, 7, 28])
def test_noise_levels_agree_with_the_own_scheduler(config: dict[str, Any], steps: int) -> None:
    own = diffusers.FlowMatchEulerDiscreteScheduler(**config)
    other = control.multistep(own)
    own.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=0.7)
    other.set_timesteps(steps, mu=0.7)
    assert len(other.sigmas) == len(own.sigmas) == steps + 1
    assert torch.allclose(own.sigmas, other.sigmas, atol=3e-3)
    assert own.sigmas[-1] == other.sigmas[-1] == 0.0
    assert torch.allclose(own.timesteps, other.timesteps.float(), atol=3.0)


def test_a_shift_set_later_is_taken_over() -> None:
    own = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    own.set_shift(4.0)
    assert control.multistep(own).config.flow_shift == 4.0


def test_pipelines_find_the_constants_of_dynamic_shifting() -> None:
    own = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.8)
    config = control.multistep(own).config
    assert config.get("base_shift") == 0.8
    assert config.get("max_shift") == own.config.max_shift


def test_a_pipeline_converges_to_one_picture_with_both_solvers() -> None:
    pipe = flux_pictures()
    asked = shot(0)
    converged = asked.run(pipe, steps=60)
    few = asked.run(pipe, steps=STEPS)
    own = pipe.scheduler
    pipe.scheduler = control.multistep(own)
    same = asked.run(pipe, steps=60)
    assert metrics.psnr(same, converged) > 45.0
    assert metrics.psnr(same, asked.run(pipe, steps=STEPS)) > metrics.psnr(same, few) + 1.0


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_models_that_are_no_flows_get_dpm_solver(prediction_type: str) -> None:
    own = diffusers.DDIMScheduler(
        beta_schedule="scaled_linear", prediction_type=prediction_type, timestep_spacing="trailing"
    )
    other = control.multistep(own)
    assert type(other).__name__ == "DPMSolverMultistepScheduler"
    assert other.config.prediction_type == prediction_type
    assert other.config.timestep_spacing == "trailing"
    assert other.config.solver_order == 2
    assert torch.equal(other.alphas_cumprod, own.alphas_cumprod)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (diffusers.UniPCMultistepScheduler, "UniPCMultistepScheduler is a multistep"),
        (lambda: diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True), "invert_sigmas"),
        (diffusers.DDPMWuerstchenScheduler, "no prediction_type"),
        (lambda: None, "NoneType"),
    ],
)
def test_schedulers_without_counterpart_say_so(scheduler: Callable[[], Any], message: str) -> None:
    with pytest.raises(AccelUnsupportedError, match=message):
        control.multistep(scheduler())


def test_a_control_that_does_not_exist_names_its_reason() -> None:
    pipe = flux_pictures(control.multistep(diffusers.FlowMatchEulerDiscreteScheduler()))
    asked = shot(0)
    picture = asked.run(pipe)
    found = control.equal_time(pipe, [(asked, picture)], 1.0, solver="multistep")
    assert "multistep" in found.unavailable
    assert found.to_dict() == {"solver": "multistep", "unavailable": found.unavailable}


class Clockwork(Shot):
    """A shot that takes an exact time for every step, so that the search can be checked."""

    __slots__ = ()
    seconds: dict[int, float] = {}  # noqa: RUF012 - shared on purpose, cleared by the fixture

    def run(self, pipe: Any, *, steps: int | None = None) -> Any:
        """Draws one grey level for each step count."""
        del pipe
        self.now[0] += self.seconds[int(steps or 0)]
        return np.full((16, 16, 3), 100 + int(steps or 0), np.uint8)

    now = [0.0]  # noqa: RUF012


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Shot:
    """Returns a shot of 20 steps that take 0.1 s each on top of 0.5 s."""
    monkeypatch.setattr("time.perf_counter", lambda: Clockwork.now[0])
    monkeypatch.setattr(Clockwork, "seconds", {n: 0.5 + 0.1 * n for n in range(1, 21)})
    return Clockwork(prompt="", seed=0, arguments={"num_inference_steps": 20})


class Idle:
    """A pipeline that is never called."""

    scheduler: Any = None


REFERENCE = np.full((16, 16, 3), 120, np.uint8)


def test_the_wanted_time_is_met_between_two_step_counts(clockwork: Shot) -> None:
    found = control.equal_time(Idle(), [(clockwork, REFERENCE)], 1.23)
    assert (found.low_steps, found.high_steps) == (7, 8)
    assert found.steps == pytest.approx(7.3)
    assert found.shown_steps == 7
    mse = 0.7 * (13 / 255) ** 2 + 0.3 * (12 / 255) ** 2
    assert found.summary.psnr_mean == pytest.approx(metrics.psnr_of(mse))
    assert found.scores[0].mae == pytest.approx((0.7 * 13 + 0.3 * 12) / 255)


def test_a_machine_that_slowed_down_moves_the_wanted_time(clockwork: Shot) -> None:
    # Measured when everything took half as long; the full run takes 2.5 s now.
    measured = Ratio.of([1.25], [0.625])
    found = control.equal_time(Idle(), [(clockwork, REFERENCE)], measured)
    assert found.target_s == pytest.approx(1.25)
    assert found.steps == pytest.approx(7.5)


def test_a_disturbed_run_does_not_move_the_search(
    clockwork: Shot, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiccups = iter([0.0, 7.0, 0.0, 0.0, 0.0, 0.0, 3.0])
    disturbed = Clockwork.run

    def run(self: Any, pipe: Any, *, steps: int | None = None) -> Any:
        Clockwork.now[0] += next(hiccups, 0.0)
        return disturbed(self, pipe, steps=steps)

    monkeypatch.setattr(Clockwork, "run", run)
    found = control.equal_time(Idle(), [(clockwork, REFERENCE)], 1.23)
    assert found.steps == pytest.approx(7.3)


@pytest.mark.parametrize(
    ("target_s", "steps", "identical"), [(0.01, 1.0, False), (2.5, 20.0, True), (9.0, 20.0, True)]
)
def test_times_out_of_reach_end_at_one_or_at_all_steps(
    clockwork: Shot,
    target_s: float,
    steps: float,
    identical: bool,
) -> None:
    found = control.equal_time(Idle(), [(clockwork, REFERENCE)], target_s)
    assert found.steps == steps
    assert found.scores[0].identical is identical


@pytest.mark.usefixtures("clockwork")
def test_a_single_step_has_no_neighbours() -> None:
    one = Clockwork(prompt="", seed=0, arguments={"num_inference_steps": 1})
    found = control.equal_time(Idle(), [(one, REFERENCE)], 0.3)
    assert (found.low_steps, found.high_steps, found.steps) == (1, 1, 1.0)


def test_noise_that_turns_times_round_does_not_break_the_search(
    clockwork: Shot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clockwork, "seconds", {n: 3.0 - 0.1 * n for n in range(1, 21)})
    found = control.equal_time(Idle(), [(clockwork, REFERENCE)], 0.5)
    assert 1 <= found.low_steps < found.high_steps <= 20
    assert 0.0 <= found.weight <= 1.0


def test_real_runs_give_pictures_and_count_every_run() -> None:
    pipe = flux_pictures()
    shots = [shot(0, steps=4), shot(1, steps=4)]
    pairs = [(each, each.run(pipe)) for each in shots]
    runs: list[int] = []
    own = pipe.scheduler
    found = control.equal_time(
        pipe,
        pairs,
        Ratio.of([2.0], [1.0]),
        solver="multistep",
        rounds=1,
        on_run=lambda: runs.append(1),
    )
    assert pipe.scheduler is own
    assert found.scheduler == "UniPCMultistepScheduler"
    assert len(found.images) == len(found.scores) == 2
    assert found.images[0].size == pairs[0][1].size
    assert len(runs) >= 5
    assert found.to_dict()["quality"]["count"] == 2


def test_the_scheduler_comes_back_after_a_failure() -> None:
    pipe = flux_pictures()
    asked = shot(0, steps=4)
    picture = asked.run(pipe)
    own, config = pipe.scheduler, dict(pipe.config)

    def stop() -> None:
        if pipe.scheduler is not own:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        control.equal_time(
            pipe, [(asked, picture)], 0.01, solver="multistep", rounds=1, on_run=stop
        )
    assert pipe.scheduler is own
    assert dict(pipe.config) == config
    assert metrics.score(asked.run(pipe), picture).identical


@pytest.mark.parametrize(
    ("pairs", "target_s", "rounds", "message"),
    [
        ([], 1.0, 3, "no pictures"),
        ([(None, None)], 0.0, 3, "0.0 seconds"),
        ([(None, None)], float("nan"), 3, "nan seconds"),
        ([(None, None)], 1.0, 0, "rounds=0"),
    ],
)
def test_impossible_requests_are_refused(
    pairs: list[Any], target_s: float, rounds: int, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        control.equal_time(Idle(), pairs, target_s, rounds=rounds)
