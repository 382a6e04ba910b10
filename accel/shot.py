"""One picture or clip asked of a pipeline, so that it can be asked again with the same noise."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from accel.errors import AccelUnsupportedError

DEFAULT_STEPS = 50
"""What pipelines of diffusers do where their signature names no number of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A prompt, a seed and the other arguments of one pipeline call.

    Attributes:
        prompt: What to show; empty where the arguments hold ready-made embeddings.
        seed: Seed of a CPU generator made anew for every call, the same noise on every device.
        arguments: Everything else that is passed to the pipeline.
    """

    prompt: str
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def run(self, pipe: Any, *, steps: int | None = None) -> Any:
        """Returns the picture or clip, with `steps` denoising steps if given.

        Raises:
            AccelUnsupportedError: the pipeline gives back something without images or frames.
        """
        arguments = {
            **self.arguments,
            "generator": torch.Generator("cpu").manual_seed(self.seed),
        }
        if self.prompt:
            arguments["prompt"] = self.prompt
        if steps is not None:
            arguments["num_inference_steps"] = steps
        return pictures(pipe(**arguments))[0]


def pictures(output: Any) -> Any:
    """Returns the images of a pipeline's output, or its clips (PIL images or [F, H, W, C] each).

    Raises:
        AccelUnsupportedError: there are none.
    """
    for name in ("images", "frames"):
        found = getattr(output, name, None)
        if found is not None and len(found) > 0:
            return found
    raise AccelUnsupportedError(
        f"The pipeline returned {type(output).__name__} without images or frames; only pipelines "
        "that make pictures or clips can be used here, and only without return_dict=False."
    )


def frames(picture: Any) -> list[Any]:
    """Returns a clip's frames as PIL images; of a picture, itself."""
    if hasattr(picture, "save"):
        return [picture]
    return [frame if hasattr(frame, "save") else _pil(frame) for frame in picture]


def _pil(frame: Any) -> Any:
    values = np.asarray(frame)
    whole = values if values.dtype == np.uint8 else (values * 255).round().clip(0, 255)
    return Image.fromarray(whole.astype(np.uint8))


def steps_of(pipe: Any, shot: Shot) -> int:
    """Returns how many denoising steps `shot` asks of `pipe`: its own number or the default."""
    asked = shot.arguments.get("num_inference_steps")
    if asked is None:
        asked = call_parameters(type(pipe)).get("num_inference_steps", DEFAULT_STEPS)
    return int(asked)


def call_parameters(pipeline_class: type) -> dict[str, Any]:
    """Returns what a call of the pipeline class takes: every parameter with its default."""
    signature = inspect.signature(pipeline_class.__call__)
    parameters = list(signature.parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}
