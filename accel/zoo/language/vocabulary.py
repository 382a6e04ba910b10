"""The tokenizer of the language models: whole words of the tasks, and single characters.

A prompt becomes `<|start|> prompt <|answer|>`; the answer follows, and `<|end|>` fills the rest.
"""

import string
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from accel.errors import OptionError
from accel.zoo.language.tasks import TASKS
from accel.zoo.language.words import FIRST_NAMES, LAST_NAMES, NOUNS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = {
    "pad_token": "<|pad|>",
    "bos_token": "<|start|>",
    "sep_token": "<|answer|>",
    "eos_token": "<|end|>",
    "mask_token": "<|mask|>",
    "unk_token": "<|unknown|>",
}
PAD_ID, START_ID, ANSWER_ID, END_ID, MASK_ID, UNKNOWN_ID = range(len(SPECIAL))
MOST_POSITIONS = 512
MOST_PROMPT_TOKENS = 352

_PHRASES = (
    ", ",
    "; ",
    " ? ",
    " of ",
    " by ",
    " before ",
    "one of ",
    " leaves",
    " joins last",
    " joins first",
    " joins behind ",
    " and ",
    " swap",
)


@cache
def vocabulary() -> dict[str, int]:
    """Every token's id: the special ones, printable ASCII, then words and phrases of the tasks."""
    heads = [f"{name}: " for name in TASKS]
    lasts = [f" {name}" for name in LAST_NAMES]
    letters = [*string.printable.rstrip(string.whitespace), " ", "\n"]
    pieces = [*SPECIAL.values(), *letters, *heads, *_PHRASES, *NOUNS, *FIRST_NAMES, *lasts]
    return {piece: number for number, piece in enumerate(pieces)}


def language_tokenizer() -> "PreTrainedTokenizerFast":
    """A tokenizer that pads on the left and reads every text of the tasks without loss."""
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast

    # Equal scores make Viterbi take the fewest pieces, that is whole words where there are any.
    core = Tokenizer(models.Unigram([(piece, -1.0) for piece in vocabulary()], UNKNOWN_ID))
    core.decoder = decoders.Fuse()
    start, answer = SPECIAL["bos_token"], SPECIAL["sep_token"]
    core.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {answer}",
        special_tokens=[(start, START_ID), (answer, ANSWER_ID)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        padding_side="left",
        model_max_length=MOST_POSITIONS,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL,
    )


def encode_prompts(tokenizer: "PreTrainedTokenizerFast", prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of every prompt, from `<|start|>` to `<|answer|>`.

    Raises:
        OptionError: a prompt holds a character that the vocabulary lacks, or is too long.
    """
    encoded: list[list[int]] = tokenizer(list(prompts)).input_ids
    for prompt, ids in zip(prompts, encoded, strict=True):
        if UNKNOWN_ID in ids:
            unknown = sorted({piece for piece in prompt if piece not in vocabulary()})
            raise OptionError(
                f"The prompt {prompt[:40]!r} holds {', '.join(map(repr, unknown))}; the language "
                "models read printable ASCII. Leave it out."
            )
        if len(ids) > MOST_PROMPT_TOKENS:
            raise OptionError(
                f"The prompt {prompt[:40]!r}... has {len(ids)} tokens; the language models were "
                f"trained on {MOST_PROMPT_TOKENS} at most. Shorten it."
            )
    return encoded


def encode_answers(tokenizer: "PreTrainedTokenizerFast", answers: Sequence[str]) -> list[list[int]]:
    """Token ids of every answer, without `<|end|>`."""
    ids: list[list[int]] = tokenizer(list(answers), add_special_tokens=False).input_ids
    return ids


def answer_text(tokenizer: "PreTrainedTokenizerFast", ids: Sequence[int]) -> str:
    """The text before the first `<|end|>`."""
    ids = list(ids)
    end = ids.index(END_ID) if END_ID in ids else len(ids)
    text: str = tokenizer.decode(ids[:end])
    return text
