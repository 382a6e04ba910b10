"""Which module of a denoiser does which part of its work."""

import re
from enum import Enum, auto
from itertools import chain

from torch import nn

from accel.models import find_spec, known_sites, with_parts
from accel.probe import candidate_lists
from accel.sites import Kind, ModelSites
from accel.specs import REFUSED
from accel.work import Part


class Role(Enum):
    """What a module is for; what is inside of it has the same role unless it has its own."""

    OUTSIDE = auto()
    BLOCK = auto()
    UNET = auto()
    ATTENTION = auto()
    CROSS = auto()
    MLP = auto()


# Names of MLPs inside of blocks, of their layers, and of the projections of blocks in which
# attention and MLP share one.
_MLP = re.compile(
    r"(.*_)?(ff|ffn|mlp|feed_?forward)(_.*)?|proj_(mlp|out)|(gate|up|down)_proj|channelwise"
)
# Attention modules that no table names are known by what they have, and by name which of them look
# at something else.
_QUERIES = ("to_q", "to_qkv", "to_query", "to_qkv_mlp_proj", "q_proj", "qkv", "img_qkv_proj")
_CROSS = re.compile(r"cross")
_KINDS = {
    Kind.BLOCK: Role.BLOCK,
    Kind.ATTENTION: Role.ATTENTION,
    Kind.TEMPORAL_ATTENTION: Role.ATTENTION,
    Kind.CROSS_ATTENTION: Role.CROSS,
    Kind.MLP: Role.MLP,
    Kind.DOWN: Role.UNET,
    Kind.MID: Role.UNET,
    Kind.UP: Role.UNET,
}
_LEAVES = frozenset({Role.ATTENTION, Role.CROSS, Role.MLP})


def sites_to_count(module: nn.Module) -> ModelSites:
    """The sites of a denoiser, for one in no table those that its structure suggests.

    Raises:
        AccelUnsupportedError: if the model is known to be no use, or has no list of blocks.
    """
    spec = find_spec(module)
    if spec is not None and type(module).__name__ not in REFUSED:
        return known_sites(module, spec)
    lists = [sites for sites in candidate_lists(module).values() if len(sites) > 1]
    # The largest list is the one that the picture goes through.
    lists.sort(key=lambda sites: -sum(_size(site.module) for site in sites))
    return with_parts(module, tuple(chain.from_iterable(lists)))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def roles_of(module: nn.Module, sites: ModelSites) -> dict[str, Role]:
    """Every module's role, by its path."""
    parts = (*sites.attention, *sites.temporal, *sites.cross, *sites.mlp)
    declared = {
        site.path: _KINDS[site.kind]
        for site in (*sites.blocks, *sites.down, *sites.mid, *sites.up, *parts)
    }
    roles = {"": Role.OUTSIDE}
    for path, child in module.named_modules():
        if path:
            above, _, name = path.rpartition(".")
            roles[path] = declared.get(path) or _role(roles[above], name, child)
    return roles


def _role(above: Role, name: str, module: nn.Module) -> Role:
    if above in _LEAVES:
        return above
    if any(query in module._modules for query in _QUERIES):  # noqa: SLF001 -- children by name
        return Role.CROSS if _CROSS.search(name) else Role.ATTENTION
    if above is Role.BLOCK and _MLP.fullmatch(name):
        return Role.MLP
    return above


def part_of(role: Role, *, core: bool, convolution: bool) -> Part:
    """The part of the work that an operation in a module of this role belongs to.

    Args:
        role: of the innermost module that runs.
        core: whether the operation multiplies two activations, as attention does.
        convolution: whether it is a convolution.
    """
    if role is Role.CROSS:
        return Part.CROSS
    if role is Role.MLP:
        return Part.MLP
    if core and role is not Role.OUTSIDE:
        return Part.CORE
    if role is Role.ATTENTION:
        return Part.PROJECTIONS
    if role is Role.UNET or (convolution and role is Role.BLOCK):
        return Part.CONVOLUTION
    return Part.REST
