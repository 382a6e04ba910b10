"""Models that know the exact answer: tables whose logits are conditional marginals of a joint law.

With an oracle every policy of decoding can be checked against arithmetic. Drawing a permutation of
four letters one, two or four tokens at a time is valid with probability 1, 3/8 and 3/32.
"""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from accel.errors import OptionError

LOWEST_LOGIT = -100.0


class Oracle(nn.Module):
    """Logits of a masked language model that knows the law of its sequences.

    Called like the language models of the zoo, on `[B, prompt_length + N]` token ids of which the
    prompt is ignored. Row i of `.logits` is the log of the probability of each token at position
    i, given all unmasked tokens; a token that cannot be has -100. Given tokens that cannot be
    together, it answers as if nothing were given.
    """

    def __init__(
        self,
        sequences: Tensor,
        weights: Tensor,
        *,
        vocab_size: int,
        prompt_length: int = 1,
        logits_shifted: bool = False,
    ) -> None:
        """Make an oracle for a law.

        Args:
            sequences: What can be, [M, N] token ids below `vocab_size` - 1, which masks.
            weights: How probable each is, up to one factor, [M].
            vocab_size: Number of tokens, the mask token included.
            prompt_length: Columns to ignore before the sequence, at least 1.
            logits_shifted: Answer one position early, as Dream does.

        Raises:
            OptionError: shapes or ranges do not fit.
        """
        super().__init__()
        _check(sequences, weights, vocab_size, prompt_length)
        self.sequences = nn.Buffer(sequences.long())
        self.law = nn.Buffer(weights.double() / weights.double().sum())
        self.prompt_length = prompt_length
        self.config = SimpleNamespace(
            mask_token_id=vocab_size - 1,
            eos_token_id=None,
            vocab_size=vocab_size,
            block_length=0,
            logits_shifted=logits_shifted,
        )
        self.dtype = torch.float32

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        """An object whose `logits` are [B, prompt_length + N, vocab_size].

        Raises:
            OptionError: the ids have another length, or a mask that hides part of the sequence.
        """
        self._check_call(input_ids, attention_mask)
        marginals = self.marginals(input_ids[:, self.prompt_length :])
        logits = torch.zeros(*input_ids.shape, self.config.vocab_size)
        known = marginals.log().clamp(min=LOWEST_LOGIT).float()
        shift = int(self.config.logits_shifted)
        end = input_ids.shape[1] - shift
        logits[:, self.prompt_length - shift : end] = known
        return SimpleNamespace(logits=logits)

    def marginals(self, tokens: Tensor) -> Tensor:
        """Conditional probability of every token at every position, [B, N, vocab_size]."""
        masked = tokens == self.config.mask_token_id
        agrees = (tokens[:, None] == self.sequences) | masked[:, None]
        weights = agrees.all(-1) * self.law
        total = weights.sum(1, keepdim=True)
        posterior = torch.where(total > 0, weights / total.clamp(min=1e-300), self.law)
        one_hot = nn.functional.one_hot(self.sequences, self.config.vocab_size).double()
        return torch.einsum("bm,mnv->bnv", posterior, one_hot)

    def probability(self, tokens: Tensor) -> Tensor:
        """Probability of each complete sequence, [B], 0 for what cannot be."""
        same = (tokens[:, None] == self.sequences).all(-1)
        return (same * self.law).sum(1)

    def total_variation(self, tokens: Tensor) -> float:
        """Distance in 0..1 between the law and the frequencies of the sequences [B, N]."""
        same = (tokens[:, None] == self.sequences).all(-1).double()
        frequencies = same.mean(0)
        impossible = 1.0 - frequencies.sum()
        return float(0.5 * ((frequencies - self.law).abs().sum() + impossible))

    def _check_call(self, input_ids: Tensor, attention_mask: Tensor | None) -> None:
        length = self.prompt_length + self.sequences.shape[1]
        if input_ids.shape[1] != length:
            raise OptionError(
                f"The oracle knows {length} positions ({self.prompt_length} of them prompt); "
                f"{input_ids.shape[1]} were given."
            )
        if attention_mask is not None and not bool(attention_mask[:, self.prompt_length :].all()):
            raise OptionError("The mask hides part of the sequence; the oracle reads all of it.")


def _check(sequences: Tensor, weights: Tensor, vocab_size: int, prompt_length: int) -> None:
    if sequences.ndim != 2 or weights.shape != sequences.shape[:1]:  # noqa: PLR2004
        raise OptionError(
            f"Sequences of shape {tuple(sequences.shape)} and weights of shape "
            f"{tuple(weights.shape)} were given; expected [M, N] and [M]."
        )
    if sequences.min() < 0 or sequences.max() >= vocab_size - 1:
        raise OptionError(
            f"Token ids reach from {int(sequences.min())} to {int(sequences.max())}; with a "
            f"vocab_size of {vocab_size} they are 0 to {vocab_size - 2}, since the last one masks."
        )
    if weights.min() < 0 or weights.sum() <= 0:
        raise OptionError("Weights must be 0 or more, and not all 0.")
    if len(torch.unique(sequences, dim=0)) != len(sequences):
        raise OptionError("A sequence was given twice; give each one once, with its whole weight.")
    if prompt_length < 1:
        raise OptionError(f"prompt_length is {prompt_length}; it must be 1 or more.")


def shuffle_oracle(n: int, *, logits_shifted: bool = False) -> Oracle:
    """Every permutation of `n` letters, all as probable.

    Drawing k at a time is valid with probability n! / (n^k (n - k)^k (n - 2k)^k ...).

    Raises:
        OptionError: `n` is not in 1..7, beyond which the table is large.
    """
    most = 7
    if not 1 <= n <= most:
        raise OptionError(f"n is {n}; permutations are enumerated for 1 to {most} letters.")
    sequences = torch.tensor(list(itertools.permutations(range(n))))
    return Oracle(
        sequences, torch.ones(len(sequences)), vocab_size=n + 1, logits_shifted=logits_shifted
    )


def coupled_oracle(names: int, *, logits_shifted: bool = False) -> Oracle:
    """Names of two tokens, each first name with a last name of its own: 2 at once fit in 1/`names`.

    Raises:
        OptionError: `names` is below 1.
    """
    firsts = torch.arange(max(names, 0))
    pairs = torch.stack((firsts, firsts + names), dim=1)
    if names < 1:
        raise OptionError(f"names is {names}; it must be 1 or more.")
    return Oracle(pairs, torch.ones(names), vocab_size=2 * names + 1, logits_shifted=logits_shifted)


def independent_oracle(marginals: Sequence[Sequence[float]]) -> Oracle:
    """Positions that know nothing of each other: decoding them at once loses nothing.

    Raises:
        OptionError: positions have different numbers of tokens.
    """
    sizes = {len(row) for row in marginals}
    if len(sizes) != 1:
        raise OptionError(f"Positions have {sorted(sizes)} tokens; expected one number.")
    rows = torch.tensor(marginals, dtype=torch.float64)
    size = rows.shape[1]
    sequences = torch.tensor(list(itertools.product(range(size), repeat=len(rows))))
    weights = rows[torch.arange(len(rows)), sequences].prod(1)
    return Oracle(sequences, weights, vocab_size=size + 1)
