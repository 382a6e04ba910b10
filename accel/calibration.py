"""The verb `calibrate`: what a method needs to know about a model, seen in full runs of it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from accel.api import patch, status
from accel.errors import ConflictError, OptionError
from accel.method import Method
from accel.progress import Progress

Chosen = TypeVar("Chosen", bound=Method)


def calibrate(pipe: Any, method: Chosen, prompts: Sequence[str], **call: Any) -> Chosen:
    """Returns the method with what it needs to know about a pipeline, from one full run a prompt.

    Args:
        pipe: an unpatched pipeline; it is left as it was.
        method: one that learns, such as `TeaCache` or `MagCache`, with the options to keep.
        prompts: at least one; prompt i is drawn with seed i.
        call: further arguments of the pipeline, as for the pictures to come.

    Raises:
        OptionError: if the method has nothing to learn, there are no prompts, or the runs taught
            too little.
        ConflictError: if the pipeline is patched.
    """
    watcher, learnt = method.learning()
    if isinstance(prompts, str) or not prompts:
        raise OptionError(f"prompts is {prompts!r}; expected a list of one or more prompts.")
    if status(pipe).patched:
        raise ConflictError("Calibration needs the pipeline bare; call accel.unpatch(pipe) first.")
    with patch(pipe, watcher), Progress("calibrate", len(prompts)) as progress:
        for seed, prompt in enumerate(prompts):
            pipe(prompt, generator=torch.Generator("cpu").manual_seed(seed), **call)
            progress.step()
    return learnt()
