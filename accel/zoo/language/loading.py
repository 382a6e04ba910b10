"""A language model of the zoo together with its tokenizer, as `accel.zoo.load` gives it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from accel.errors import AccelUnsupportedError
from accel.zoo.language.decode import Plan, decode
from accel.zoo.language.vocabulary import (
    END_ID,
    MASK_ID,
    START_ID,
    answer_text,
    encode_prompts,
)

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A masked diffusion language model in eval mode, and its tokenizer, both stock transformers.

    `model.config` says how to drive it: `mask_token_id`, `block_length`, `logits_shifted`.
    """

    model: "LlamaForCausalLM"
    tokenizer: "PreTrainedTokenizerFast"

    def answers(self, prompts: Sequence[str], plan: Plan | None = None) -> list[str]:
        """The answers of the plain decoder, one token at a time unless `plan` says otherwise.

        Raises:
            OptionError: a prompt holds a character that the models do not know, is too long or
                empty, or `plan` does not fit the model.
        """
        ids = encode_prompts(self.tokenizer, prompts)
        decoded = decode(self.model, ids, plan or Plan(gen_length=32))
        return [answer_text(self.tokenizer, row) for row in decoded.tokens.tolist()]


def load_language(folder: Path, torch_dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The model that `folder` holds, on the CPU.

    Raises:
        AccelUnsupportedError: it would be driven causally, see `check_bidirectional`.
    """
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    check_bidirectional(model)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return LanguageModel(model.to(torch_dtype), tokenizer)


@torch.no_grad()
def check_bidirectional(model: "LlamaForCausalLM") -> None:
    """Make sure that a later token reaches an earlier position.

    Raises:
        AccelUnsupportedError: it does not. Releases of transformers before 5.2 read nothing of
            `is_causal` in a configuration and would give wrong answers without a word.
    """
    one, other = model(input_ids=torch.tensor([[START_ID, MASK_ID], [START_ID, END_ID]])).logits
    if torch.equal(one[0], other[0]):
        import transformers

        raise AccelUnsupportedError(
            f"transformers {transformers.__version__} runs this model causally (config.is_causal "
            f"is {getattr(model.config, 'is_causal', 'missing')}); it must see both ways. Install "
            "transformers 5.2 or newer."
        )
