"""The schedulers that the zoo's pipelines are measured with: their own and multistep ones."""

import math
from collections.abc import Callable, Mapping
from typing import Any


def flow(own: str, shift: float) -> Mapping[str, Callable[[], Any]]:
    """Makers of schedulers for flow matching: "euler", "unipc" and "dpm", with `own` as "own".

    Euler starts at sigma 1; the multistep solvers start at 0.999, where their log-SNR is finite.
    `FluxPipeline` gives every scheduler the logarithm of a shift, which DPM only takes as a dynamic
    one, so there it comes out of the config.
    """
    from diffusers import (
        DPMSolverMultistepScheduler,
        FlowMatchEulerDiscreteScheduler,
        UniPCMultistepScheduler,
    )

    ways = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": shift}

    def dpm() -> Any:
        scheduler = DPMSolverMultistepScheduler(
            solver_order=2, use_dynamic_shifting=True, time_shift_type="exponential", **ways
        )
        scheduler.register_to_config(base_shift=math.log(shift), max_shift=math.log(shift))
        return scheduler

    makers: dict[str, Callable[[], Any]] = {
        "euler": lambda: FlowMatchEulerDiscreteScheduler(shift=shift, use_dynamic_shifting=False),
        "unipc": lambda: UniPCMultistepScheduler(solver_order=2, **ways),
        "dpm": dpm,
    }
    return {"own": makers.pop(own), **makers}


def noise() -> Mapping[str, Callable[[], Any]]:
    """Makers of schedulers for the prediction of noise: "own" (DDIM), "unipc", "dpm", "euler".

    All take the betas and the spacing of scenes-unet's own.
    """
    from diffusers import (
        DPMSolverMultistepScheduler,
        EulerDiscreteScheduler,
        UniPCMultistepScheduler,
    )

    from accel.zoo.blueprint import new_ddim

    shared = ("beta_schedule", "beta_start", "beta_end", "prediction_type", "timestep_spacing")
    ways = {name: new_ddim().config[name] for name in shared}
    return {
        "own": new_ddim,
        "unipc": lambda: UniPCMultistepScheduler(solver_order=2, **ways),
        "dpm": lambda: DPMSolverMultistepScheduler(solver_order=2, **ways),
        "euler": lambda: EulerDiscreteScheduler(**ways),
    }
