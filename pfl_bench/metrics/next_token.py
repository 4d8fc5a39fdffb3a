"""Prediction of the next token at each place of a sequence, as language models are measured.

Only counted tokens matter: a target of -100 is left out, whatever the model gives there.

======================  =========================================================================
key                     definition
======================  =========================================================================
accuracy                counted tokens that are predicted (highest logit), by counted tokens. A
                        prediction of padding or of the unknown token is wrong, even where that
                        is the target.
accuracy_with_unknown   the same, but a prediction of padding or unknown is right where that is
                        the target
loss                    mean cross entropy of a counted token, in nats
perplexity              e to the power of the loss; infinite beyond what a float holds
num_tokens              counted tokens
======================  =========================================================================

A tie between logits goes to the lower token, as ``argmax`` has it. A place with a logit that is NaN
or infinite counts as wrong and makes the loss non-finite. Where there are examples and no counted
token among them, all but the last are NaN.

Departures from LEAF's code, whose paper names the accuracy AccuracyTop1 and defines no more: it
divides by input tokens that are not padding, which in its data are as many as the tokens that its
counts mark, so the accuracy is the same number; among them is one place a comment, after its end,
whose target is padding and which nothing can get right. Its loss is another: it averages over the
examples at each place of the sequence, then over places, then over batches, so that a token at a
late place weighs more where few sequences are that long.

Source: Caldas et al. 2018 (LEAF), table 2; its published code of the Reddit model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from pfl_bench.config.training import NoOptions
from pfl_bench.types import DataFacts, UserInputError

NOT_COUNTED = -100
# Logits are gone through in pieces of so many elements (16 MiB), beside the model's own output.
_PIECE = 1 << 22

LOWER_IS_BETTER = frozenset({"loss", "perplexity"})
HEADLINES = ("accuracy", "perplexity")

Options = NoOptions


class NextToken:
    """The family's accumulator; predictions of the tokens ``never_right`` count as wrong."""

    def __init__(self, never_right: tuple[int, ...]) -> None:
        self._never_right = never_right
        self._correct = 0
        self._correct_with_unknown = 0
        self._loss = 0.0
        self._tokens = 0
        self._examples = 0

    @torch.no_grad()
    def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Take a batch in.

        Args:
            outputs: Shape (n, T, V), logits.
            targets: Shape (n, T), int64, in 0..V-1, or -100 where a token is not counted.

        Returns:
            "accuracy" and "loss" (nats) of each example, means over its counted tokens (0 without
            one), and their number as "weight"; each of shape (n,), float64 on the CPU.

        Raises:
            UserInputError: Shapes do not fit, or a counted target is no token.
        """
        if outputs.ndim != 3 or targets.shape != outputs.shape[:2]:
            raise UserInputError(
                "next-token metrics take outputs of shape (n, T, V), logits of each place of each "
                f"sequence, and targets of shape (n, T); got {tuple(outputs.shape)} and "
                f"{tuple(targets.shape)}"
            )
        count, length, vocabulary = outputs.shape
        flat = targets.reshape(-1)
        places = torch.nonzero(flat != NOT_COUNTED).squeeze(1)
        wanted = flat[places]
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < vocabulary:
            raise UserInputError(
                f"next-token metrics: targets are {int(wanted.min())} to {int(wanted.max())}, "
                f"where the model gives logits of the tokens 0 to {vocabulary - 1}; targets that "
                f"do not count are {NOT_COUNTED}"
            )
        right, any_right, losses = self._measure(
            outputs.reshape(count * length, vocabulary), places, wanted
        )
        owner = torch.div(places, length, rounding_mode="floor").cpu()
        weight = torch.bincount(owner, minlength=count).double()
        self._correct += int(right.sum())
        self._correct_with_unknown += int(any_right.sum())
        self._loss += math.fsum(losses.tolist())
        self._tokens += len(losses)
        self._examples += count
        share = weight.clamp_min(1.0)
        return {
            "accuracy": torch.bincount(owner, right.double(), count) / share,
            "loss": torch.bincount(owner, losses, count) / share,
            "weight": weight,
        }

    def _measure(
        self, logits: Tensor, places: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of each counted token: right, right with unknown ones, and its loss; on the CPU."""
        right, any_right, losses = [], [], []
        size = max(1, _PIECE // logits.shape[1])
        for rows, tokens in zip(torch.split(places, size), torch.split(wanted, size), strict=True):
            piece = logits[rows].float()
            predicted = piece.argmax(dim=1)
            hit = (predicted == tokens) & piece.isfinite().all(dim=1)
            allowed = torch.ones_like(hit)
            for token in self._never_right:
                allowed &= predicted != token
            any_right.append(hit.cpu())
            right.append((hit & allowed).cpu())
            losses.append(functional.cross_entropy(piece, tokens, reduction="none").cpu().double())
        if not losses:
            none = torch.zeros(0, dtype=torch.bool)
            return none, none, torch.zeros(0, dtype=torch.float64)
        return torch.cat(right), torch.cat(any_right), torch.cat(losses)

    def merge(self, other: NextToken) -> None:
        """Take in what another instance has seen."""
        self._correct += other._correct
        self._correct_with_unknown += other._correct_with_unknown
        self._loss += other._loss
        self._tokens += other._tokens
        self._examples += other._examples

    def compute(self) -> dict[str, float]:
        """The metrics that the module lists."""
        if self._examples == 0:
            raise UserInputError("next-token metrics over zero examples are undefined")
        tokens = self._tokens if self._tokens else math.nan
        loss = self._loss / tokens
        return {
            "accuracy": self._correct / tokens,
            "accuracy_with_unknown": self._correct_with_unknown / tokens,
            "loss": loss,
            "perplexity": _exp(loss),
            "num_tokens": self._tokens,
        }


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def build(options: Options, facts: DataFacts) -> NextToken:
    """Build an empty accumulator; the tokens "pad_id" and "unk_id" of the facts are never right."""
    never_right = []
    for key in ("pad_id", "unk_id"):
        token = facts.extra.get(key)
        if token is None:
            continue
        if not isinstance(token, int) or isinstance(token, bool):
            raise UserInputError(f"the data's fact '{key}' is {token!r}, expected a token's number")
        never_right.append(token)
    return NextToken(tuple(never_right))
