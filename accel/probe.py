"""Sites of a model in no table: candidates by structure, then one call that shows what flows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from accel.copies import Overlay
from accel.errors import AccelUnsupportedError
from accel.models import with_parts
from accel.sites import BlockIO, Kind, ModelSites, Site

_HIDDEN, _CONTEXT = "hidden_states", "encoder_hidden_states"


def candidate_blocks(module: nn.Module) -> tuple[Site, ...]:
    """The longest direct list of equal blocks whose `forward` takes `hidden_states`.

    Raises:
        AccelUnsupportedError: if there is none.
    """
    stacks: list[list[Site]] = [[]]
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList) and len({type(block) for block in child}) == 1:
            sites = [
                Site(Kind.BLOCK, f"{name}.{index}", block) for index, block in enumerate(child)
            ]
            if _HIDDEN in sites[0].positions:
                stacks.append(sites)
    longest = max(stacks, key=len)
    if len(longest) < 2:  # noqa: PLR2004 -- one block is no stack
        raise AccelUnsupportedError(
            _refusal(module, "found no list of equal blocks that take `hidden_states`")
        )
    return tuple(longest)


@dataclass(slots=True)
class _Seen:
    hidden: Tensor | None
    context: Tensor | None
    output: Any


class Probe:
    """Watches the candidate blocks during one denoiser call, then tells the sites."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._blocks = candidate_blocks(module)
        self._seen: dict[str, _Seen] = {}

    def __enter__(self) -> "Probe":
        self._overlays = [
            Overlay(site.module, {"forward": self._recorder(site)}) for site in self._blocks
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for overlay in self._overlays:
            overlay.remove()

    def _recorder(self, site: Site) -> Any:
        inner = site.module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = inner(*args, **kwargs)
            self._seen[site.path] = _Seen(
                site.get(_HIDDEN, args, kwargs), site.get(_CONTEXT, args, kwargs), output
            )
            return output

        return forward

    def sites(self) -> ModelSites:
        """The model's sites, established from what flowed.

        Raises:
            AccelUnsupportedError: if a block did not run, or its streams cannot be told apart.
        """
        blocks = []
        for site in self._blocks:
            seen = self._seen.get(site.path)
            io = None if seen is None else _infer_io(seen)
            if io is None:
                problem = (
                    "did not run"
                    if seen is None
                    else "returns nothing shaped like its `hidden_states`"
                )
                raise AccelUnsupportedError(_refusal(self.module, f"{site.path} {problem}"))
            blocks.append(Site(Kind.BLOCK, site.path, site.module, io))
        return with_parts(self.module, tuple(blocks))


def _infer_io(seen: _Seen) -> BlockIO | None:
    if seen.hidden is None:
        return None
    if isinstance(seen.output, Tensor):
        return BlockIO() if seen.output.shape == seen.hidden.shape else None
    if not isinstance(seen.output, Sequence) or len(seen.output) not in (1, 2):
        return None
    hidden = _positions(seen.output, seen.hidden)
    if len(seen.output) == 1:
        return BlockIO(hidden_index=0) if hidden == [0] else None
    context = _positions(seen.output, seen.context)
    # Equal shapes of both streams leave the order open; guessing would swap text and image.
    if len(hidden) != 1 or len(context) != 1 or hidden == context:
        return None
    return BlockIO(hidden_index=hidden[0], context=_CONTEXT, context_index=context[0])


def _positions(output: Sequence[Any] | Mapping[int, Any], like: Tensor | None) -> list[int]:
    if like is None:
        return []
    return [
        index for index in range(len(output)) if getattr(output[index], "shape", None) == like.shape
    ]


def _refusal(module: nn.Module, problem: str) -> str:
    name = type(module).__name__
    return (
        f"accel does not know {name}, and could not work it out: {problem}. "
        "Add to accel/specs.py:\n"
        f'  DENOISERS["{name}"] = ModelSpec(("<list of blocks>",))\n'
        '  BLOCKS["<block class>"] = BlockIO(hidden_index=<n or None>, '
        'context="encoder_hidden_states", context_index=<n or None>)'
    )
