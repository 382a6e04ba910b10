"""Which methods are tested on which pipelines, with which settings, and what they must equal."""

import functools
from collections.abc import Iterable
from typing import Any

import pytest
from torch import Tensor

import accel
from accel.method import Method
from sparse_attn.sparse_method import SparseMethod
from tests.tiny import CASES, Case, Pipeline

METHODS: dict[str, type[Method]] = accel.methods()

# A setting that does something within six steps. A method that is not listed engages by default.
_OPEN: dict[str, Any] = {"warmup": 1, "tail": 0, "min_steps": 0, "max_streak": 2}
# Attention of any size, from the second evaluation on, in parts that tiny models have several of.
_SPARSE: dict[str, Any] = {"min_tokens": 0, "dense_steps": 0.2, "dense_layers": 0.0}
_CLUSTERS: dict[str, Any] = {"q_clusters": 3, "k_clusters": 4, "min_kc_ratio": 0.0, **_SPARSE}
_BLOCKS: dict[str, Any] = {"block": 2, **_SPARSE}
_ENGAGING: dict[str, dict[str, Any]] = {
    "FirstBlockCache": {"threshold": 10.0, **_OPEN},
    "DBCache": {"head": 1, "threshold": 10.0, **_OPEN},
    "TeaCache": {"threshold": 10.0, "coefficients": (1.0, 0.0), **_OPEN},
    "MagCache": {
        "threshold": 10.0,
        "retention": 0.0,
        "magnitudes": ((1e4, 0.0), (-1e4, 0.0)),
        **_OPEN,
    },
    "BWCache": {"threshold": 10.0, "reuse": 2, **_OPEN},
    "LinearPlan": {"compute": (0, 1, 3, 6, 9), "weights": ((2, (1.5, -0.5)),)},
    "DeepCache": {"interval": 2, "min_steps": 0},
    "FasterDiffusion": {"every": 2, "min_steps": 0},
    "FasterCache": {
        "start": 1.0,
        "guidance_start": 1.0,
        "guidance_interval": 3,
        "warmup": 1,
        "tail": 0,
        "min_steps": 0,
    },
    "PAB": {"window": (0.0, 1.0), "warmup": 1, "tail": 0, "min_steps": 0},
    "TaylorSeer": {"interval": 2, "warmup": 1, "tail": 0, "min_steps": 0},
    "ToCa": {"interval": 3, "ratio": 0.3, "cell": 2, "warmup": 1, "tail": 0, "min_steps": 0},
    "SVG2": {"top_p": 0.3, **_CLUSTERS},
    "SVGEAR": {"top_p": 0.3, **_CLUSTERS},
    "Twilight": {"top_p": 0.6, "token_p": 0.6, **_CLUSTERS},
    "SVG1": {"rows": 8, **_BLOCKS},
    "Jenga": _BLOCKS,
    "SpargeAttn": {"topk": 0.4, "similarity": -1.0, **_BLOCKS},
    "Radial": {"decay": 0.1, "coverage": 0.6, **_BLOCKS},
    "Rettention": {"density": 0.1, **_BLOCKS},
    "TokenSparse": {"tau": 0.3, "rows": 8, **_SPARSE},
}
SPARSE = frozenset(name for name, cls in METHODS.items() if issubclass(cls, SparseMethod))
# They share all that touches a model, so most are tested on one pipeline only, where they engage.
# Masks of Chroma's have a row for each query, and Sana's attention is linear.
_ONLY: dict[str, frozenset[str]] = {
    "SVG2": frozenset(CASES) - {"chroma", "sana"},
    "SVGEAR": frozenset({"wan_two_stage"}),
    "Twilight": frozenset({"flux_true_cfg"}),
    "SVG1": frozenset({"wan_two_stage"}),
    "Jenga": frozenset({"flux_true_cfg"}),
    "SpargeAttn": frozenset({"sd15"}),
    "Radial": frozenset({"wan_two_stage"}),
    "Rettention": frozenset({"flux_true_cfg", "sd15"}),
    "TokenSparse": frozenset({"sd15"}),
}
# The kinds of denoiser a method is made for; one that is not listed is made for transformers.
_EVERY = frozenset({"transformer", "unet"})
_FAMILIES: dict[str, frozenset[str]] = {
    "DeepCache": frozenset({"unet"}),
    "FasterDiffusion": frozenset({"unet"}),
    "FasterCache": _EVERY,
    "PAB": _EVERY,
    "TaylorSeer": _EVERY,
    "ToCa": _EVERY,
    **dict.fromkeys(SPARSE, _EVERY),
}
# Methods that hook modules inside of blocks: a compiled block is broken up around those, so the
# modules are compiled instead.
INSIDE = frozenset({"FasterCache", "PAB", "TaylorSeer", "ToCa"}) | SPARSE
# Methods that keep nothing from one evaluation to the next.
FORGETFUL = frozenset({"SVG1", "Jenga", "SpargeAttn", "Radial", "TokenSparse"})

# One pipeline per way of guiding and of numbering steps, for the tests that need many generations.
FEW = ("flux_img2img", "flux_true_cfg", "sd3_skip_layer", "sd15", "wan_two_stage")
# The same with schedulers and videos that count or shape differently.
VARIED = (*FEW, "cogvideox", "dit_heun", "pixart", "sd15_img2img")
# For what depends on the modules alone: one and two streams, one and two denoisers, a UNet.
MODULES = ("flux_true_cfg", "sd15", "wan_two_stage")

# Methods whose way through a model another one goes as well, hook for hook: the tests of every
# pipeline run the other one everywhere, and these on the varied ones. A new method runs everywhere.
_LIKE_ANOTHER = frozenset({"DBCache", "MagCache", "BWCache", "TaylorSeer", "FasterDiffusion"})


def engaging(name: str) -> Method:
    """Returns a setting of a method that changes what a six-step generation computes."""
    return METHODS[name](**_ENGAGING.get(name, {}))


def neutral(name: str) -> Method:
    """Returns the setting of a method that must change nothing."""
    return engaging(name).neutral()


def accepts(name: str, case: Case) -> bool:
    """Tells whether a method is made for the denoiser of this pipeline."""
    return case.family in _FAMILIES.get(name, frozenset({"transformer"}))


def pairs(cases: Iterable[str] | None = None, *, accepted: bool = True) -> pytest.MarkDecorator:
    """Returns the parametrisation over every method and each of these cases that it accepts.

    Without cases these are all, but for methods that differ from another one only in when they act.
    """
    given = None if cases is None else tuple(cases)
    chosen = [
        pytest.param(CASES[case], name, id=f"{name}-{case}")
        for name in METHODS
        for case in given or (VARIED if name in _LIKE_ANOTHER else CASES)
        if accepts(name, CASES[case]) is accepted and case in _ONLY.get(name, CASES)
    ]
    return pytest.mark.parametrize(("case", "name"), chosen)


def patched(case: Case, method: Method) -> tuple[Pipeline, accel.Patch]:
    """Returns a fresh pipeline with this method on it, and the handle."""
    pipe = case.make()
    return pipe, accel.patch(pipe, method)


def fresh(case: Case, method: Method | None = None, **request: Any) -> Tensor:
    """Returns what a pipeline that never generated before makes of this request."""
    return _fresh(case.name, method, tuple(sorted(request.items())))


@functools.cache
def _fresh(name: str, method: Method | None, request: tuple[tuple[str, Any], ...]) -> Tensor:
    case = CASES[name]
    pipe = case.make()
    if method is not None:
        accel.patch(pipe, method)
    return case.run(pipe, **dict(request))
