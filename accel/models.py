"""From a denoiser to its sites: by the table of specs, else by structure and a probing call."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import nn

from accel.errors import AccelUnsupportedError
from accel.sites import BlockIO, Kind, ModelSites, Site, uncompiled
from accel.specs import (
    ATTENTION_NAMES,
    BLOCKS,
    CROSS_ATTENTION_NAMES,
    DENOISER_COMPONENTS,
    DENOISERS,
    MLP_NAMES,
    TEMPORAL_NAMES,
    UNET_BLOCKS,
    ModelSpec,
)


def find_spec(module: nn.Module) -> ModelSpec | None:
    """The spec of a denoiser's class or of the nearest base class that has one, by name."""
    return next(
        (DENOISERS[cls.__name__] for cls in type(module).__mro__ if cls.__name__ in DENOISERS), None
    )


def is_unet(module: nn.Module) -> bool:
    """Whether a denoiser has a way down and a way up instead of a stack of blocks."""
    spec = find_spec(module)
    return spec is not None and spec.unet


def find_denoisers(target: Any) -> dict[str, nn.Module]:
    """The denoisers in a pipeline by component name, or the module itself under "".

    Raises:
        AccelUnsupportedError: if the target is neither, or holds no denoiser.
    """
    if isinstance(target, nn.Module):
        return {"": _uncompiled(target)}
    components = getattr(target, "components", None)
    if not isinstance(components, dict) or not callable(target):
        raise AccelUnsupportedError(
            f"accel cannot patch a {type(target).__name__}. Pass a diffusers pipeline, or a "
            "denoiser such as `pipe.transformer` or `pipe.unet`."
        )
    modules = {name: module for name, module in components.items() if isinstance(module, nn.Module)}
    found = {
        name: _uncompiled(module)
        for name, module in modules.items()
        if name in DENOISER_COMPONENTS or find_spec(module) is not None
    }
    if not found:
        held = (f"{name} ({type(module).__name__})" for name, module in modules.items())
        raise AccelUnsupportedError(
            f"{type(target).__name__} holds no denoiser that accel knows: its modules are "
            f"{', '.join(held) or 'none'}. Add its class to DENOISERS in accel/specs.py."
        )
    return found


def _uncompiled(module: nn.Module) -> nn.Module:
    if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:  # noqa: SLF001 -- torch has no public name
        raise AccelUnsupportedError(
            f"{type(uncompiled(module)).__name__} is compiled as a whole, so its "
            "blocks cannot be skipped. Patch the uncompiled model and compile its blocks instead: "
            "`pipe.transformer.compile_repeated_blocks()`."
        )
    return module


def known_sites(module: nn.Module, spec: ModelSpec) -> ModelSites:
    """The sites of a denoiser in the table, checked against the real modules.

    Raises:
        AccelUnsupportedError: if the module does not look as its spec says.
    """
    if spec.unet:
        return _unet_sites(module)
    stacks = [tuple(_stack(module, name)) for name in spec.stacks]
    in_order = zip(*stacks, strict=True) if spec.interleaved else stacks
    blocks = [
        Site(Kind.BLOCK, path, block, _block_io(module, block))
        for path, block in chain.from_iterable(in_order)
    ]
    return replace(with_parts(module, tuple(blocks)), direct=spec.direct)


def with_parts(module: nn.Module, blocks: tuple[Site, ...]) -> ModelSites:
    """The sites of a transformer with these blocks: them, their attention and their MLPs."""
    sites = ModelSites(denoiser=denoiser_site(module), blocks=blocks)
    return _add_parts(sites, ((site.path, site.module) for site in blocks))


def denoiser_site(module: nn.Module) -> Site:
    """The site of the denoiser itself, whose input may be called `sample`."""
    site = Site(Kind.DENOISER, "", module)
    if "hidden_states" in site.positions:
        return site
    return Site(Kind.DENOISER, "", module, BlockIO(hidden=next(iter(site.positions), "sample")))


def _stack(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    try:
        stack = module.get_submodule(name)
    except AttributeError:
        stack = module
    if not isinstance(stack, nn.ModuleList):
        raise AccelUnsupportedError(
            f"{type(module).__name__} has no stack of blocks called {name!r} (its spec in "
            "accel/specs.py says so); this version of the library seems to have moved it. "
            f"Its lists are: {_list_names(module)}."
        )
    yield from ((f"{name}.{index}", block) for index, block in enumerate(stack))


def _list_names(module: nn.Module) -> str:
    lists = (name for name, child in module.named_children() if isinstance(child, nn.ModuleList))
    return ", ".join(lists) or "none"


def _block_io(module: nn.Module, block: nn.Module) -> BlockIO:
    original = uncompiled(block)
    name = next((cls.__name__ for cls in type(original).__mro__ if cls.__name__ in BLOCKS), None)
    if name is None:
        raise AccelUnsupportedError(
            f"{type(module).__name__} holds blocks of class {type(original).__name__}, whose "
            "inputs and outputs accel does not know. Add "
            f"`{type(original).__name__!r}: BlockIO(...)` to BLOCKS in accel/specs.py."
        )
    io = BLOCKS[name]
    arguments = Site(Kind.BLOCK, "", block, io).positions
    missing = [
        argument for argument in (io.hidden, io.context) if argument and argument not in arguments
    ]
    if missing:
        raise AccelUnsupportedError(
            f"{type(original).__name__}.forward takes ({', '.join(arguments)}), but accel/specs.py "
            f"expects {' and '.join(missing)} among them. Correct its line in BLOCKS."
        )
    return io


def _add_parts(sites: ModelSites, blocks: Iterable[tuple[str, nn.Module]]) -> ModelSites:
    """These sites and the attention and the MLPs of these blocks."""
    found = [site for path, block in blocks for site in _parts_of(path, block)]

    def of(kind: Kind) -> tuple[Site, ...]:
        return tuple(site for site in found if site.kind is kind)

    return replace(
        sites,
        attention=of(Kind.ATTENTION),
        temporal=of(Kind.TEMPORAL_ATTENTION),
        cross=of(Kind.CROSS_ATTENTION),
        mlp=of(Kind.MLP),
    )


def _parts_of(path: str, block: nn.Module) -> Iterator[Site]:
    for name, child in uncompiled(block).named_children():
        inner = f"{path}.{name}"
        if name in ATTENTION_NAMES or name in CROSS_ATTENTION_NAMES:
            yield Site(_attention_kind(inner, child), inner, child)
        elif name in MLP_NAMES:
            yield Site(Kind.MLP, inner, child, BlockIO(hidden=next(iter(_first_argument(child)))))


def _attention_kind(path: str, module: nn.Module) -> Kind:
    *outer, name = path.split(".")
    # SD 3.5 and AnimateDiff call a second self-attention `attn2`.
    if getattr(module, "is_cross_attention", name in CROSS_ATTENTION_NAMES):
        return Kind.CROSS_ATTENTION
    temporal = any(part in TEMPORAL_NAMES for part in outer)
    return Kind.TEMPORAL_ATTENTION if temporal else Kind.ATTENTION


def _first_argument(module: nn.Module) -> dict[str, int]:
    return dict(Site(Kind.MLP, "", module).positions)


def _unet_sites(module: nn.Module) -> ModelSites:
    def side(kind: Kind, name: str) -> tuple[Site, ...]:
        return tuple(Site(kind, path, block) for path, block in _stack(module, name))

    middle = getattr(module, "mid_block", None)
    transformers = (
        (path, block)
        for path, block in module.named_modules()
        if type(block).__name__ in UNET_BLOCKS
    )
    sites = ModelSites(
        denoiser=denoiser_site(module),
        down=side(Kind.DOWN, "down_blocks"),
        mid=() if middle is None else (Site(Kind.MID, "mid_block", middle),),
        up=side(Kind.UP, "up_blocks"),
    )
    return _add_parts(sites, transformers)
