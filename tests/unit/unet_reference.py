"""UNets driven by hand, and references in which features are exchanged while everything runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

import accel
from accel.method import Method
from caching import FasterDiffusion
from tests.tiny import CASES
from tests.tiny.models import Denoiser
from tests.tiny.observe import counting
from tests.tiny.unets import Inputs

SKIPS = "res_hidden_states_tuple"
SCHEDULERS = {
    "ddim": diffusers.DDIMScheduler,
    "euler": diffusers.EulerDiscreteScheduler,
    "heun": diffusers.HeunDiscreteScheduler,
    "dpm": diffusers.DPMSolverMultistepScheduler,
    "pndm": diffusers.PNDMScheduler,
}
OPEN = {"warmup": 0, "tail": 0, "min_steps": 0}


def call(denoiser: Denoiser, inputs: Inputs, time: int) -> Tensor:
    """Returns what the denoiser makes of its inputs at a timestep."""
    with torch.no_grad():
        output: Tensor = denoiser(timestep=torch.tensor(time), return_dict=False, **inputs)[0]
    return output


def evaluate(
    denoiser: Denoiser,
    handle: accel.Patch,
    evaluations: Sequence[tuple[Inputs, int]],
    num_steps: int | None = None,
) -> list[Tensor]:
    """Returns the outputs of one generation with these inputs and timesteps."""
    outputs = []
    with handle.generation(num_steps or len(evaluations)):
        for inputs, time in evaluations:
            outputs.append(call(denoiser, inputs, time))
            handle.advance()
    return outputs


def moved(inputs: Inputs, by: float = 0.5) -> Inputs:
    """Returns the inputs with other latents of the same shape."""
    return inputs | {"sample": inputs["sample"].flip(-1) + by}


def branches(denoiser: Denoiser) -> Iterator[tuple[int, int, int]]:
    """Returns block, layer and number of every branch, shallowest first."""
    number = 0
    for block, down in enumerate(denoiser.down_blocks):
        for layer in range(len(down.resnets) + 1):
            yield block, layer, number + layer
        number += len(down.resnets) + (1 if down.downsamplers else 0)


def runs(block: Any) -> list[nn.Module]:
    """Returns of every resnet of a block a module that runs when it does."""
    return [
        next(part for part in resnet.modules() if isinstance(part, nn.Conv2d))
        for resnet in block.resnets
    ]


def all_runs(denoiser: Denoiser) -> list[nn.Module]:
    """Returns the same for all blocks of a UNet."""
    blocks = (*denoiser.down_blocks, denoiser.mid_block, *denoiser.up_blocks)
    return [module for block in blocks for module in runs(block)]


def _skips(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = kwargs[SKIPS] if SKIPS in kwargs else args[1]
    return found


def actions(handle: accel.Patch) -> list[str]:
    """Returns what the newest generation did at each of its denoiser calls."""
    return [decision.action for decision in handle.report.decisions]


def faster(**options: Any) -> FasterDiffusion:
    """Returns Faster Diffusion without guards and without noise."""
    return FasterDiffusion(**{"prior_noise": 0.0, **OPEN, **options})


def generate(
    method: Method, scheduler: str = "ddim", case: str = "sd15", **request: Any
) -> tuple[Tensor, accel.Patch, int]:
    """Returns the latents, the handle, and how often the first layer of the way up ran."""
    pipe = CASES[case].make()
    pipe.scheduler = SCHEDULERS[scheduler].from_config(pipe.scheduler.config)
    handle = accel.patch(pipe, method)
    with counting(runs(pipe.unet.up_blocks[0])[:1]) as count:
        latents = CASES[case].run(pipe, **request)
    return latents, handle, count()


class ExchangedEntry:
    """The whole UNet, with what enters one layer of its way up exchanged for what once did.

    What a layer gets is what comes from below joined with what skips, so its first channels are
    exchanged. That is what DeepCache computes, without anything resting.
    """

    def __init__(self, denoiser: Denoiser, number: int) -> None:
        self._denoiser = denoiser
        entries = [
            (block, index) for block in denoiser.up_blocks for index in range(len(block.resnets))
        ]
        self._block, self._index = entries[len(entries) - 1 - number]
        self._width = 0
        self.kept: Tensor | None = None

    def __call__(self, inputs: Inputs, time: int, *, keep: bool) -> Tensor:
        """Returns the output, keeping or exchanging what enters."""
        with ExitStack() as stack:
            for module, hook in (
                (self._block, self._see),
                (self._block.resnets[self._index], self._keep if keep else self._exchange),
            ):
                hooked = module.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(hooked.remove)
            return call(self._denoiser, inputs, time)

    def _see(self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._width = _skips(args, kwargs)[-1 - self._index].shape[1]

    def _keep(self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        joined = args[0] if args else kwargs["input_tensor"]
        self.kept = joined[:, : joined.shape[1] - self._width].clone()

    def _exchange(self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self.kept is not None
        joined = args[0] if args else kwargs["input_tensor"]
        joined = torch.cat([self.kept, joined[:, self.kept.shape[1] :]], dim=1)
        return ((joined, *args[1:]), kwargs) if args else ((), {**kwargs, "input_tensor": joined})


class ExchangedEncoder:
    """The whole UNet, with all that enters its way up exchanged for what once did."""

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self._kept: list[tuple[Tensor, tuple[Tensor, ...]]] = []

    def __call__(self, inputs: Inputs, time: int, *, keep: bool) -> Tensor:
        """Returns the output, keeping or exchanging what enters."""
        if keep:
            self._kept.clear()
        with ExitStack() as stack:
            for index, block in enumerate(self._denoiser.up_blocks):
                hook = self._keep if keep else self._exchange(index)
                hooked = block.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(hooked.remove)
            return call(self._denoiser, inputs, time)

    def _keep(self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        self._kept.append((hidden.clone(), tuple(skip.clone() for skip in _skips(args, kwargs))))

    def _exchange(self, index: int) -> Callable[..., Any]:
        def exchange(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            kept, skips = self._kept[index]
            hidden = args[0] if args else kwargs["hidden_states"]
            # What enters the first block comes from the middle, what enters the others is fresh.
            hidden = kept.clone() if index == 0 else hidden
            if args:
                return (hidden, skips, *args[2:]), kwargs
            return (), {**kwargs, "hidden_states": hidden, SKIPS: skips}

        return exchange
