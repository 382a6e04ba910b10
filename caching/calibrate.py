"""What a method needs to know about a model, seen in full runs of the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from tqdm.auto import tqdm

import accel
from accel.errors import ConflictError, OptionError
from accel.method import Binding, Method
from accel.sites import ModelSites
from caching.learning import Learnt, Lesson

Hooks = Callable[[ModelSites, Learnt], Iterator[Binding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording(Method):
    """A method that only looks on."""

    hooks: Hooks
    learnt: Learnt

    def neutral(self) -> Self:
        return self

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        yield from self.hooks(model, self.learnt)


def lessons(
    hooks: Hooks, pipe: Any, prompts: Sequence[str], call: Mapping[str, Any]
) -> list[Lesson]:
    """What hooks that keep computing have seen, of all branches; `Method.calibrate` says the rest.

    Raises:
        OptionError: without prompts.
        ConflictError: if the pipeline is patched.
    """
    if isinstance(prompts, str) or not prompts:
        raise OptionError(f"prompts is {prompts!r}; expected a list of one or more prompts.")
    if accel.status(pipe).patched:
        raise ConflictError("Calibration needs the pipeline bare; call accel.unpatch(pipe) first.")
    learnt = Learnt(only_learn=True)
    with accel.patch(pipe, _Recording(hooks=hooks, learnt=learnt)):
        for seed, prompt in enumerate(tqdm(prompts, desc="calibrate", disable=len(prompts) == 1)):
            pipe(prompt, generator=torch.Generator("cpu").manual_seed(seed), **call)
    return learnt.everything()
