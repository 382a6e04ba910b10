"""The zoo's two tokenizers, built from the words of the captions.

Words out of the grammar are one token each; anything else falls back to bytes (CLIP) or letters
(T5), so that every prompt can be encoded.
"""

import math
import string
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from accel.zoo.scenes import COLOURS, GROUNDS, KINDS, RELATIONS, SIZES

if TYPE_CHECKING:
    from transformers import CLIPTokenizer, T5TokenizerFast

CLIP_LENGTH = 32
T5_LENGTH = 24
T5_MAX_LENGTH = 512

_BYTE_LEVEL_SPACE = 256


def caption_words(more: Sequence[str] = ()) -> list[str]:
    """Every word of the scenes' grammar and of the phrases in `more`, sorted."""
    phrases = (*COLOURS, *GROUNDS, *KINDS, *RELATIONS, *SIZES, "a on ground", *more)
    return sorted({word for phrase in phrases for word in phrase.split()})


def clip_tokenizer() -> "CLIPTokenizer":
    """A byte-level BPE with one merge chain for each run of letters in the grammar."""
    from transformers import CLIPTokenizer

    letters = _byte_letters()
    vocab = {"<|startoftext|>": 0, "<|endoftext|>": 1}
    for piece in [*letters, *(f"{letter}</w>" for letter in letters)]:
        vocab[piece] = len(vocab)
    merges: list[tuple[str, str]] = []
    runs = {run for word in caption_words() for run in word.split("-")}
    for word in sorted(runs):
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        while len(pieces) > 1:
            merge = _next_merge(pieces, merges)
            pieces = _merged(pieces, merge)
            if merge not in merges:
                merges.append(merge)
                vocab["".join(merge)] = len(vocab)
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=CLIP_LENGTH)


def _byte_letters() -> list[str]:
    """The 256 printable stand-ins that byte-level BPE uses for bytes, in their usual order."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    if len(letters) != _BYTE_LEVEL_SPACE:
        raise ValueError(f"expected {_BYTE_LEVEL_SPACE} byte letters, found {len(letters)}.")
    return letters


def _next_merge(pieces: list[str], merges: list[tuple[str, str]]) -> tuple[str, str]:
    """The earliest known merge that applies to `pieces`, else their first pair."""
    pairs = list(pairwise(pieces))
    known = [merge for merge in merges if merge in pairs]
    return known[0] if known else pairs[0]


def _merged(pieces: list[str], merge: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == merge:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def t5_tokenizer(words: Sequence[str] = ()) -> "T5TokenizerFast":
    """A unigram model of `words`, else the scenes' own, with printable ASCII to spell the rest."""
    from transformers import T5TokenizerFast

    words = words or caption_words()
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(f"▁{word}", -math.log(len(words))) for word in words]
    vocab += [(letter, -12.0) for letter in ("▁", *string.printable.strip())]
    return T5TokenizerFast(vocab=vocab, extra_ids=0, model_max_length=T5_MAX_LENGTH)
