"""Self-attention of any model, answered by somebody else for the duration of one module's call.

Every family hands queries and keys to `scaled_dot_product_attention` after norms and rotary
embeddings. A function mode of torch sees that call whoever makes it: nothing is set on classes or
libraries, a processor of the user's own is served as well, and a call that is not answered costs
nothing, since the mode is not on then.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from accel.dispatch import Detour, backend_of, processor_of, through_torch
from accel.errors import AccelUnsupportedError, OptionError
from accel.key_padding import KnownMasks
from accel.layers import Call
from accel.models import is_unet
from accel.picture_tokens import Picture, Place, Text, picture_of
from accel.session import Generation
from accel.sites import Kind, uncompiled

_SDPA = F.scaled_dot_product_attention
_HEADS_DIM = 4
_TOKENS_DIM = 3
# How processors, by class name, order text and picture, whether they join them or find them joined.
_TEXT_PLACES: dict[str, Text] = {
    **dict.fromkeys(
        (
            "AuraFlowAttnProcessor2_0",
            "BriaAttnProcessor",
            "BriaFiboAttnProcessor",
            "CogVideoXAttnProcessor2_0",
            "CogView4AttnProcessor",
            "EasyAnimateAttnProcessor2_0",
            "Flux2AttnProcessor",
            "Flux2ParallelSelfAttnProcessor",
            "FluxAttnProcessor",
            "FluxIPAdapterAttnProcessor",
            "FusedAuraFlowAttnProcessor2_0",
            "FusedCogVideoXAttnProcessor2_0",
            "GlmImageAttnProcessor",
            "Krea2AttnProcessor",
            "LongCatImageAttnProcessor",
            "OvisImageAttnProcessor",
            "QwenDoubleStreamAttnProcessor2_0",
        ),
        Text.FIRST,
    ),
    **dict.fromkeys(
        (
            "FusedJointAttnProcessor2_0",
            "HunyuanImageAttnProcessor",
            "HunyuanVideoAttnProcessor2_0",
            "JointAttnProcessor2_0",
            "JoyImageAttnProcessor",
            "MochiAttnProcessor2_0",
            "MotifVideoAttnProcessor2_0",
            "SD3IPAdapterJointAttnProcessor2_0",
        ),
        Text.LAST,
    ),
}
# They leave out the text's padding, which may be all of the text.
_LEAVE_PADDING_OUT = frozenset({"MochiAttnProcessor2_0"})


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One scaled-dot-product self-attention that a module asks for.

    Attributes:
        query: [B, H, N, D], after norm and rotary embedding.
        key, value: [B, Hk, N, D]; Hk divides H.
        mask: as the model passed it.
        scale: of the scores.
        ordinal: how many went before it in this call of the module (Mochi asks for one a sample).
        place: which tokens are the picture's, or None where that is not known.
        valid: [B, N] of bool, the keys that are no padding, or None where there is no mask.
        unplaced: why `place` is None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    ordinal: int
    place: Place | None
    valid: Tensor | None
    unplaced: str | None = None


Answer = Callable[[Attention], Tensor | None]


@dataclass(slots=True)
class _Scene:
    """The denoiser call that is going on, and what lasts for the generation.

    Attributes:
        rows: of the denoiser's batch.
        pictures: by the shape that the denoiser is handed.
        reached: paths of the modules whose attention was seen.
        unreached: classes of modules and processors of which it was said that theirs was not.
    """

    call: Call | None = None
    rows: int = 1
    pictures: dict[torch.Size | None, Picture] = field(default_factory=dict)
    masks: KnownMasks = field(default_factory=KnownMasks)
    reached: set[str] = field(default_factory=set)
    unreached: set[tuple[type, type]] = field(default_factory=set)

    @property
    def picture(self) -> Picture:
        """What the denoiser is handed."""
        if self.call is None:
            return Picture()
        hidden: Any = self.call.hidden
        shape = hidden.shape if isinstance(hidden, Tensor) else None
        if shape not in self.pictures:
            module = self.call.site.module
            config = getattr(module, "config", None)
            self.pictures[shape] = picture_of(self.call, config, unet=is_unet(module))
        return self.pictures[shape]


def _scene(generation: Generation) -> _Scene:
    return generation.state((id(_Scene), "", ""), _Scene)


def pictured(call: Call) -> Any:
    """A denoiser call's `proceed()`, within which `answered` knows where the picture's tokens are.

    Bind it to the denoiser, or call it in a hook of your own there.
    """
    scene = _scene(call.generation)
    hidden = call.hidden
    scene.call = call
    scene.rows = len(hidden) if isinstance(hidden, Tensor) and hidden.dim() else 1
    try:
        return call.proceed()
    finally:
        scene.call, scene.masks = None, KnownMasks()


def answered(call: Call, answer: Answer, *, refused: Callable[[str], None] | None = None) -> Any:
    """An attention module's `proceed()` in which self-attention is answered by `answer`.

    All else in the module runs as it would: attention to other tokens than the queries' own (text,
    an IP-Adapter's keys), the projections around it, hooks of others. So does self-attention that
    is causal, has dropout, needs gradients or a mask of more than missing keys, which is refused
    with that reason. A compiled module runs uncompiled for this call, since the mode has no place
    in its graph. Projections that the user compiled are compiled once more.

    Args:
        call: of an attention module. `pictured` on the denoiser tells where the picture is.
        answer: returns [B, H, N, D] in the query's dtype, or None for what the model would have
            had. It runs as if outside of this function: its own attention is torch's.
        refused: gets the reason for each self-attention that `answer` was not asked for; by
            default, the report warns of it.

    Raises:
        AccelUnsupportedError: if the module's attention did not get to
            `scaled_dot_product_attention`, neither now nor earlier in this generation. Noted
            instead where the user asked for that (`strict=False`).
        OptionError: if the answer has another shape or dtype than it must.
    """
    route = _Route(call, answer)
    if getattr(route.processor, "_parallel_config", None) is not None:
        output = call.proceed()
        route.reasons["its sequence is split over devices"] = None
    else:
        with ExitStack() as stack:
            route.detour = stack.enter_context(through_torch(route.processor))
            stack.enter_context(_Watch(route))
            output = call.proceed_with(())
    route.settle(refused)
    return output


class _Watch(TorchFunctionMode):
    """Hands every scaled-dot-product attention of this thread to a route."""

    def __init__(self, route: "_Route") -> None:
        super().__init__()
        self._route = route

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Torch takes the mode off while this runs.
        if func is _SDPA:
            return self._route.attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Route:
    """Where the attention of one module call goes."""

    def __init__(self, call: Call, answer: Answer) -> None:
        self.scene = _scene(call.generation)
        self.processor = processor_of(call.site.module)
        self.detour: Detour | None = None
        self.reasons: dict[str, None] = {}
        self._call = call
        self._answer = answer
        self._offered = 0
        self._others: list[str] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        """What `scaled_dot_product_attention` is to return."""
        options |= dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False))
        answer = self._ask(query, key, value, options)
        if answer is not None:
            return answer
        dense = _SDPA if self.detour is None else self.detour.attend
        return dense(query, key, value, **options)

    def settle(self, refused: Callable[[str], None] | None) -> None:
        """Says what was not offered; nothing may be silently without effect."""
        site, scene = self._call.site, self.scene
        if self._offered or self.reasons:
            scene.reached.add(site.path)
        elif site.path not in scene.reached:
            kind = type(uncompiled(site.module)), type(self.processor)
            if kind not in scene.unreached:
                scene.unreached.add(kind)
                self._call.refuse(AccelUnsupportedError(self._unreached()))
        for reason in self.reasons:
            if refused is not None:
                refused(reason)
            else:
                self._call.generation.timeline.warn(
                    f"attention of {site.path} is computed as the model does: {reason}"
                )

    def _unreached(self) -> str:
        site = self._call.site
        name = type(uncompiled(site.module)).__name__
        backend = backend_of(self.processor)
        by = f", processor {type(self.processor).__name__}" if self.processor is not None else ""
        through = f", backend {backend!r}" if backend is not None else ""
        found = "; ".join(dict.fromkeys(self._others)) or "it never calls that function"
        return (
            f"No self-attention of {site.path} ({name}{by}{through}) gets to torch's "
            f"scaled_dot_product_attention, so none of it can be answered: {found}. Choose another "
            "processor or backend (`set_attention_backend('native')`), or leave this model's "
            "attention alone."
        )

    def _ask(
        self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor | None:
        refusal = _unfit(query, key, value, options)
        other = None if refusal is not None else self._other(query, key.shape[2])
        if other is not None:
            self._others.append(other)
            return None
        valid, mask = None, options.get("attn_mask")
        if refusal is None and mask is not None:
            # Nothing says when a denoiser call ends that is not looked at.
            masks = KnownMasks() if self.scene.call is None else self.scene.masks
            found = masks.valid_keys(mask, query.shape[0], key.shape[2])
            valid, refusal = (None, found) if isinstance(found, str) else (found, None)
        if refusal is not None:
            self.reasons[refusal] = None
            return None
        query, key, value = _as_autocast(query, key, value)
        place, unplaced = self._place(query)
        scale = options.get("scale")
        attention = Attention(
            query,
            key,
            value,
            mask,
            1 / math.sqrt(query.shape[3]) if scale is None else scale,
            self._offered,
            place,
            valid,
            unplaced,
        )
        self._offered += 1
        answer = self._answer(attention)
        return None if answer is None else self._checked(answer, attention)

    def _other(self, query: Tensor, keys: int) -> str | None:
        """Why this is not self-attention over the picture, or None if it is."""
        queries = query.shape[2]
        if queries != keys:
            return f"its attention is of {queries} queries over {keys} keys"
        handed, text = self._handed("hidden_states"), self._handed("encoder_hidden_states")
        itself = self._call.argument("encoder_hidden_states") is self._call.hidden
        joins = text and not itself and self._name not in _LEAVE_PADDING_OUT
        if handed is not None and joins and queries <= handed:
            return f"its attention over {queries} tokens is not over picture and text together"
        picture = self.scene.picture
        temporal = self._call.site.kind is Kind.TEMPORAL_ATTENTION
        if temporal or picture.tokens is None or queries >= picture.tokens:
            return None
        if picture.among(queries, query.shape[0] // self.scene.rows, text=None) is None:
            return f"its attention over {queries} tokens cannot hold the picture's {picture.tokens}"
        return None

    @property
    def _name(self) -> str:
        return type(self.processor).__name__

    def _handed(self, name: str) -> int | None:
        """Tokens of a stream that the module is handed."""
        stream = self._call.argument(name)
        held = isinstance(stream, Tensor) and stream.dim() == _TOKENS_DIM
        return stream.shape[1] if held else None

    def _place(self, query: Tensor) -> tuple[Place | None, str | None]:
        """Where the picture is, or why that is not known."""
        scene, tokens = self.scene, query.shape[2]
        if scene.call is None:
            return None, "nothing looks at the denoiser's call (`pictured`)"
        if self._call.site.kind is Kind.TEMPORAL_ATTENTION:
            return None, "it is over the frames of single places"
        text = _text_place(self.processor)
        place = scene.picture.among(tokens, query.shape[0] // scene.rows, text=text)
        handed = self._handed("hidden_states")
        if place is None:
            return None, self._unplaced(tokens, text)
        if handed not in {None, place.length, tokens}:
            return None, f"the module is handed {handed} tokens; the picture has {place.length}"
        return place, None

    def _unplaced(self, tokens: int, text: Text | None) -> str:
        picture = self.scene.picture
        if picture.levels is not None:
            return f"no level of a picture of {picture.levels} latents has {tokens} tokens"
        if picture.tokens is None:
            return "what the denoiser is handed does not say how many tokens the picture has"
        if text is None:
            return f"how {self._name} orders text and picture is not known"
        return f"{tokens} tokens cannot hold the picture's {picture.tokens}"

    def _checked(self, answer: Tensor, attention: Attention) -> Tensor:
        query = attention.query
        if answer.shape == query.shape and answer.dtype == query.dtype:
            return answer
        raise OptionError(
            f"The answer for {self._call.site.path} is {tuple(answer.shape)} of {answer.dtype}; "
            f"expected {tuple(query.shape)} of {query.dtype}, as the query."
        )


def _text_place(processor: Any) -> Text | None:
    """Where a processor has the text, or None if that is not known."""
    names = (cls.__name__ for cls in type(processor).__mro__)
    return next((_TEXT_PLACES[name] for name in names if name in _TEXT_PLACES), None)


def _unfit(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> str | None:
    """Why this attention cannot be offered, whatever it is over; None if it can."""
    if options.get("is_causal"):
        return "it is causal"
    if options.get("dropout_p"):
        return f"it has a dropout of {options['dropout_p']}"
    if query.dim() != _HEADS_DIM or key.dim() != _HEADS_DIM or query.is_nested:
        return f"its queries are of {query.dim()} dimensions, not of batch, heads, tokens, channels"
    if value.shape[3] != query.shape[3]:
        return f"its values have {value.shape[3]} channels, its queries {query.shape[3]}"
    if torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value)):
        return "gradients are asked for"
    return None


def _as_autocast(*streams: Tensor) -> tuple[Tensor, ...]:
    """What `scaled_dot_product_attention` would compute with under autocast."""
    device = streams[0].device.type
    if not torch.is_autocast_enabled(device):
        return streams
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        stream if stream.dtype is torch.float64 else stream.to(dtype) for stream in streams
    )
