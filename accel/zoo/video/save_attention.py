"""Save what self-attention of scenes-video works on, to study attention methods on it.

`python -m accel.zoo.video.save_attention --layers 0 3 5 --steps 2 12 22 --out qkv.safetensors`

Every tensor is [H, N, D] in fp16, as attention gets it: normalised and with its positions. Names
are step.branch.layer.q and so on; the branches are cond and uncond. N counts frame by frame, row by
row (`grid` in the file's metadata). One layer at one step and branch takes 5 MB.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from accel.errors import OptionError
from accel.zoo.catalogue import card, load, prompts

NAME = "scenes-video"
BRANCHES = ("cond", "uncond")


class _Listener(TorchFunctionMode):
    """Hands query, key and value to `heard` whenever fused attention is called."""

    def __init__(self, heard: Callable[[dict[str, Tensor]], None]) -> None:
        super().__init__()
        self._heard = heard

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func` as it was called."""
        named = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._heard({**dict(zip(("query", "key", "value"), args, strict=False)), **named})
        return func(*args, **named)


@dataclass(slots=True)
class Recording:
    """Queries, keys and values by name, of the chosen layers and steps."""

    layers: Sequence[int]
    steps: Sequence[int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    _step: int = 0
    _call: int = 0

    def advance(self, *_: Any) -> dict[str, Any]:
        """The pipeline's `callback_on_step_end`."""
        self._step, self._call = self._step + 1, 0
        return {}

    @contextmanager
    def of(self, transformer: nn.Module) -> Iterator[None]:
        """Listen to the denoiser while the context is open.

        Raises:
            OptionError: it has fewer layers.
        """
        blocks = list(transformer.get_submodule("blocks").children())
        if missing := [layer for layer in self.layers if not 0 <= layer < len(blocks)]:
            raise OptionError(
                f"There is no layer {missing[0]}; the denoiser has layers 0 to {len(blocks) - 1}."
            )
        with ExitStack() as hooks:
            for layer in self.layers:
                _listen(hooks, blocks[layer].get_submodule("attn1"), self._keeper(layer))
            handle = transformer.register_forward_hook(self._count)
            hooks.callback(handle.remove)
            yield

    def _count(self, *_: Any) -> None:
        self._call += 1

    def _keeper(self, layer: int) -> Callable[[dict[str, Tensor]], None]:
        def keep(call: dict[str, Tensor]) -> None:
            if self._step not in self.steps:
                return
            for name in ("query", "key", "value"):
                key = f"{self._step}.{BRANCHES[self._call]}.{layer}.{name[0]}"
                self.tensors[key] = call[name][0].half().contiguous()

        return keep


def _listen(hooks: ExitStack, attention: nn.Module, heard: Callable[..., None]) -> None:
    """Have `heard` called with what `attention` computes on, until `hooks` close."""
    listener, listening = _Listener(heard), ExitStack()

    def enter(*_: Any) -> None:
        listening.enter_context(listener)

    def leave(*_: Any) -> None:
        listening.close()

    hooks.callback(attention.register_forward_pre_hook(enter).remove)
    hooks.callback(attention.register_forward_hook(leave, always_call=True).remove)


def record(
    pipe: Any, prompt: str, layers: Sequence[int], steps: Sequence[int], **call: Any
) -> dict[str, Tensor]:
    """Query, key and value of one generation, by step, branch and layer.

    Raises:
        OptionError: there are fewer layers or steps.
    """
    count = call["num_inference_steps"]
    if missing := [step for step in steps if not 0 <= step < count]:
        raise OptionError(f"There is no step {missing[0]}; steps go from 0 to {count - 1}.")
    recording = Recording(layers, steps)
    with recording.of(pipe.transformer):
        pipe(prompt, callback_on_step_end=recording.advance, output_type="latent", **call)
    return recording.tensors


def grid(pipe: Any, call: dict[str, Any]) -> tuple[int, int, int]:
    """How many tokens lie along time, height and width."""
    _, rise, run = pipe.transformer.config.patch_size
    frames = (call["num_frames"] - 1) // pipe.vae_scale_factor_temporal + 1
    scale = pipe.vae_scale_factor_spatial
    return frames, call["height"] // scale // rise, call["width"] // scale // run


def main() -> None:
    """Generate one clip and save what its attention worked on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", required=True)
    parser.add_argument("--steps", type=int, nargs="+", required=True)
    parser.add_argument("--prompt", help="(default: the first held-out one)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    pipe, call = load(NAME), card(NAME).call
    prompt = options.prompt or prompts(NAME, 1)[0]
    generator = torch.Generator("cpu").manual_seed(options.seed)
    tensors = record(pipe, prompt, options.layers, options.steps, generator=generator, **call)
    about = {"prompt": prompt, "seed": str(options.seed), "grid": json.dumps(grid(pipe, call))}
    save_file(tensors, options.out, metadata=about)


if __name__ == "__main__":
    main()
