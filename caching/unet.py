"""How a UNet is laid out: its layers, and what skips from its way down to its way up."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from accel.errors import AccelUnsupportedError
from accel.layers import Call
from accel.sites import BlockIO, Hook, Kind, ModelSites, Site, uncompiled

SKIPS = "res_hidden_states_tuple"

_SAMPLERS = ("downsamplers", "upsamplers")
_ONE_A_BLOCK = "hands one feature a block to its way up where others hand one a layer"
_SECOND_STREAM = "carries the image past its blocks in a second stream"
_OTHER_WAYS = {
    **dict.fromkeys(
        ("KDownBlock2D", "KCrossAttnDownBlock2D", "KUpBlock2D", "KCrossAttnUpBlock2D"), _ONE_A_BLOCK
    ),
    **dict.fromkeys(
        ("SkipDownBlock2D", "AttnSkipDownBlock2D", "SkipUpBlock2D", "AttnSkipUpBlock2D"),
        _SECOND_STREAM,
    ),
}


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a feature skips from the way down to the way up.

    Attributes:
        skip: its number among all of them, 0 for the one above the first block.
        down: the down block whose layer `layer` it goes into.
        layer: layers of that block above it.
        up: the up block that takes it.
        inner: layers of that block that run before it does.
    """

    skip: int
    down: int
    layer: int
    up: int
    inner: int


class UNetPath:
    """The blocks of one UNet, on the way down, in the middle and on the way up.

    Raises:
        AccelUnsupportedError: if the model is no UNet, or its features skip in another way than one
            for each layer.
    """

    def __init__(self, method: str, model: ModelSites) -> None:
        model.require_unet(method)
        self._method, self._model = method, model.name
        self.denoiser, self.down, self.mid, self.up = (
            model.denoiser,
            model.down,
            model.mid,
            model.up,
        )
        for site in (*self.down, *self.mid, *self.up):
            self._check_block(site)
        taken = sum(len(resnets(site)) for site in self.up)
        if self.handed != taken:
            self._refuse(f"hands {self.handed} features to its way up, which takes {taken}")

    @property
    def handed(self) -> int:
        """Features that the way down hands to the way up."""
        return 1 + sum(handed(site) for site in self.down)

    @property
    def layers(self) -> int:
        """Layers of all blocks: resnets, each with what follows it."""
        return sum(len(resnets(site)) for site in (*self.down, *self.mid, *self.up))

    def branch(self, block: int, layer: int) -> Branch:
        """The branch that layer `layer` of down block `block` begins.

        Raises:
            AccelUnsupportedError: if the model has no such layer.
        """
        if block >= len(self.down):
            self._refuse(f"has down blocks 0 to {len(self.down) - 1} and none numbered {block}")
        if layer > (count := len(resnets(self.down[block]))):
            self._refuse(f"has {count} layers in down block {block}, so `layer` ends at {count}")
        skip = sum(handed(site) for site in self.down[:block]) + layer
        inner, up = self.handed - 1 - skip, 0
        while inner >= len(resnets(self.up[up])):
            inner -= len(resnets(self.up[up]))
            up += 1
        return Branch(skip, block, layer, up, inner)

    def _check_block(self, site: Site) -> None:
        block = uncompiled(site.module)
        name = type(block).__name__
        if reason := _OTHER_WAYS.get(name):
            self._refuse(f"{reason} ({site.path} is a {name})")
        if not isinstance(getattr(block, "resnets", None), nn.ModuleList):
            self._refuse(f"has no list of resnets in {site.path}, a {name}")
        count = len(block.resnets)
        for child, stack in _stacks(block) if site.kind is not Kind.MID else ():
            if len(stack) % count:
                self._refuse(f"has {count} resnets but {len(stack)} {child} in {site.path}")

    def _refuse(self, found: str) -> None:
        raise AccelUnsupportedError(
            f"{self._method} cannot serve this {self._model}: it {found}. `accel.methods()` lists "
            "the others."
        )


def resnets(site: Site) -> nn.ModuleList:
    """The resnets of a UNet block."""
    found: nn.ModuleList = uncompiled(site.module).resnets
    return found


def handed(site: Site) -> int:
    """Features that a down block hands to the way up: its layers' and its downsampler's."""
    return len(resnets(site)) + bool(getattr(uncompiled(site.module), "downsamplers", None))


def scales_in_place(site: Site) -> bool:
    """Whether an up block writes into what it is given, as FreeU does."""
    return bool(getattr(uncompiled(site.module), "b1", None))


def layers(site: Site) -> list[list[Site]]:
    """The layers of a UNet block: each its resnet, then the attention and motion behind it."""
    block = uncompiled(site.module)
    count = len(block.resnets)
    found = [[_inner(site, f"resnets.{index}")] for index in range(count)]
    for name, stack in _stacks(block):
        share = len(stack) // count
        for index in range(len(stack)):
            found[index // share].append(_inner(site, f"{name}.{index}"))
    return found


def samplers(site: Site) -> list[Site]:
    """What changes the resolution at the end of a UNet block."""
    block = uncompiled(site.module)
    return [
        _inner(site, f"{name}.{index}")
        for name in _SAMPLERS
        for index in range(len(getattr(block, name, None) or ()))
    ]


def _stacks(block: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    for name, child in block.named_children():
        if isinstance(child, nn.ModuleList) and name not in ("resnets", *_SAMPLERS):
            yield name, child


def _inner(site: Site, path: str) -> Site:
    module = uncompiled(site.module).get_submodule(path)
    first = next(iter(Site(Kind.LAYER, "", module).positions))
    return Site(Kind.LAYER, f"{site.path}.{path}", module, BlockIO(hidden=first))


def hand_on(call: Call) -> Any:
    """Has a module inside of a block return what it is given."""
    return answer(call, call.hidden)


def answer(call: Call, hidden: Tensor) -> Any:
    """Has a module inside of a block return `hidden`, in the form that its block asks for."""
    return (hidden,) if call.argument("return_dict") is False else hidden


def at_rest(sites: list[Site]) -> list[tuple[Site, Hook]]:
    """Hooks that let these modules hand on what they are given."""
    return [(site, hand_on) for site in sites]


def hush(call: Call, blank: Tensor, *, skips: int, blocks: int) -> None:
    """Takes what a denoiser call adds to features out of it, where nobody reads them.

    A ControlNet adds to every feature that skips, a T2I adapter to the output of every down block.
    The first `skips` and `blocks` of those stay; the others become the single number `blank`, which
    fits the blanks that stand for the features.
    """
    control, adapter = "down_block_additional_residuals", "down_intrablock_additional_residuals"
    middle = "mid_block_additional_residual"
    # Before there was an argument of its own, adapters were passed as half of a ControlNet.
    lone = call.argument(middle) is None and call.argument(adapter) is None
    former_adapter = lone and adapter in call.site.positions
    for name, live in ((control, blocks if former_adapter else skips), (adapter, blocks)):
        given = call.argument(name)
        if given is not None:
            call.change(name, [*given[:live], *(blank for _ in given[live:])])
    if call.argument(middle) is not None:
        call.change(middle, blank)
