"""Next-token metrics against sums written out place by place."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pfl_bench.metrics import next_token
from pfl_bench.metrics.next_token import NextToken, Options, build
from pfl_bench.types import DataFacts, UserInputError

PAD, UNKNOWN = 0, 1


def facts(**extra: object) -> DataFacts:
    return DataFacts("here", "here", "sha256:0", 7, (4,), "example", extra)


def metric() -> NextToken:
    return build(Options(), facts(pad_id=PAD, unk_id=UNKNOWN))


def batch(count: int, length: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(count, length, 7, generator=generator)
    targets = torch.randint(0, 7, (count, length), generator=generator)
    targets[torch.rand(count, length, generator=generator) < 0.4] = -100
    return outputs, targets


def by_hand(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    right = right_with_unknown = tokens = 0
    losses = []
    for row, wanted in zip(outputs.double().numpy(), targets.numpy(), strict=True):
        for logits, target in zip(row, wanted, strict=True):
            if target == -100:
                continue
            tokens += 1
            predicted = int(np.argmax(logits))
            right_with_unknown += predicted == target
            right += predicted == target and predicted not in (PAD, UNKNOWN)
            losses.append(float(np.log(np.exp(logits).sum()) - logits[target]))
    loss = math.fsum(losses) / tokens
    return {
        "accuracy": right / tokens,
        "accuracy_with_unknown": right_with_unknown / tokens,
        "loss": loss,
        "perplexity": math.exp(loss),
        "num_tokens": tokens,
    }


def test_it_is_what_a_sum_over_places_gives() -> None:
    outputs, targets = batch(50)
    found = metric()
    found.update(outputs, targets)
    expected = by_hand(outputs, targets)
    assert found.compute() == pytest.approx(expected, rel=1e-6)
    # Else neither way of counting would be told from the other.
    assert expected["accuracy"] < expected["accuracy_with_unknown"]


def test_padding_and_unknown_are_wrong_even_where_they_are_the_target() -> None:
    outputs = torch.eye(7)[[PAD, UNKNOWN, 2, 3]].unsqueeze(0) * 5
    targets = torch.tensor([[PAD, UNKNOWN, 2, 4]])
    found = metric()
    values = found.update(outputs, targets)
    assert found.compute()["accuracy"] == 0.25
    assert found.compute()["accuracy_with_unknown"] == 0.75
    assert values["accuracy"].tolist() == [0.25]
    plain = build(Options(), facts())
    plain.update(outputs, targets)
    assert plain.compute()["accuracy"] == 0.75


def test_values_of_examples_weigh_by_their_counted_tokens() -> None:
    outputs, targets = batch(30)
    targets[3] = -100
    found = metric()
    values = found.update(outputs, targets)
    pooled, weight = found.compute(), values["weight"]
    assert weight.tolist() == (targets != -100).sum(1).tolist()
    assert weight[3] == 0
    for name in ("accuracy", "loss"):
        mean = float((values[name] * weight).sum() / weight.sum())
        assert mean == pytest.approx(pooled[name], rel=1e-12)
    alone = metric()
    alone.update(outputs[7:8], targets[7:8])
    assert float(values["loss"][7]) == pytest.approx(alone.compute()["loss"], rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(cuts=st.lists(st.integers(0, 40), max_size=4), piece=st.integers(1, 500))
def test_neither_batches_nor_pieces_nor_merging_matter(cuts: list[int], piece: int) -> None:
    outputs, targets = batch(40)
    whole = metric()
    whole.update(outputs, targets)
    before = next_token._PIECE
    next_token._PIECE = piece
    try:
        merged = metric()
        for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 40], strict=True):
            part = metric()
            part.update(outputs[start:stop], targets[start:stop])
            merged.merge(part)
    finally:
        next_token._PIECE = before
    assert merged.compute() == pytest.approx(whole.compute(), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_wrong_where_they_count(value: float) -> None:
    outputs = torch.eye(7)[[2, 3, 4]].unsqueeze(0) * 5
    outputs[0, 1, 6] = value
    targets = torch.tensor([[2, 3, 4]])
    found = metric()
    found.update(outputs, targets)
    assert found.compute()["accuracy"] == pytest.approx(2 / 3)
    if value != -math.inf:  # A logit of minus infinity is a probability of 0, and that is a loss.
        assert not math.isfinite(found.compute()["loss"])
    targets[0, 1] = -100
    without = metric()
    without.update(outputs, targets)
    assert without.compute()["accuracy"] == 1
    assert math.isfinite(without.compute()["loss"])


def test_a_perplexity_beyond_floats_is_infinite() -> None:
    found = metric()
    outputs = torch.zeros(1, 1, 7)
    outputs[0, 0, 2] = 1e4
    found.update(outputs, torch.tensor([[3]]))
    assert found.compute()["perplexity"] == math.inf


def test_nothing_to_go_by_is_said() -> None:
    with pytest.raises(UserInputError, match="zero examples"):
        metric().compute()
    empty = metric()
    values = empty.update(torch.randn(2, 3, 7), torch.full((2, 3), -100))
    assert values["weight"].tolist() == [0, 0]
    result = empty.compute()
    assert result.pop("num_tokens") == 0
    assert all(math.isnan(value) for value in result.values())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserInputError, match=r"shape \(n, T\)"):
        metric().update(torch.randn(2, 3, 7), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(UserInputError, match="tokens 0 to 6"):
        metric().update(torch.randn(1, 2, 7), torch.tensor([[3, 7]]))
    with pytest.raises(UserInputError, match="'unk_id' is 'one'"):
        build(Options(), facts(unk_id="one"))


def test_a_large_vocabulary_is_gone_through_without_a_second_copy() -> None:
    count, length, vocabulary = 64, 10, 10_000
    outputs = torch.zeros(count, length, vocabulary)
    biggest: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            shares = isinstance(result, Tensor) and (
                result.untyped_storage().data_ptr() == outputs.untyped_storage().data_ptr()
            )
            if isinstance(result, Tensor) and not shares:
                biggest.append(result.numel() * result.element_size())
            return result

    with Watch():
        metric().update(outputs, torch.ones(count, length, dtype=torch.int64))
    assert max(biggest) <= next_token._PIECE * 4 < outputs.numel() * 4
