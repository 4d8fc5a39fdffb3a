"""Compression of updates: what is kept, what is lost, what is sent, and what may not be had."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.compression import Compression, count_sketch, quantization, top_k
from pfl_bench.files import read_metrics
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.runner import run
from pfl_bench.types import ClientUpload, ConfigError, LocalResult, PluginError, UpdateTransform
from privacy.clipping import add_clipped_
from privacy.errors import PlanError
from privacy.ledger import read_ledger
from tests.equivalence.test_processes import InTurn
from tests.helpers import PRIVACY, central_of, make_config, parts_of

TOP_K = {"name": "top_k", "fraction": 0.1}
QUANTIZATION = {"name": "quantization", "levels": 7}
SKETCH = {"name": "count_sketch", "columns": 40, "k": 30, "rows": 3}
MODULES = {"top_k": top_k, "quantization": quantization, "count_sketch": count_sketch}
STATELESS = [TOP_K, QUANTIZATION, SKETCH]
# The digits' softmax regression.
P = 650


def transform(
    module: Any, num_parameters: int = P, seed: int = 0, **options: Any
) -> UpdateTransform:
    return module.build(module.Options(**options), num_parameters, seed)


def transforms() -> list[UpdateTransform]:
    return [
        transform(top_k, fraction=0.1),
        transform(top_k, fraction=0.1, error_feedback=True),
        transform(quantization, levels=7),
        transform(count_sketch, columns=40, k=30, rows=3),
    ]


def send(through: UpdateTransform, update: Tensor, user: int = 0, index: int = 1) -> ClientUpload:
    result = LocalResult(user, update, 1, 1, torch.zeros(()), 1)
    return through.send(ClientUpload(update, 1.0, 4.0 * update.numel()), result, index)


def updates(length: int = P) -> st.SearchStrategy[Tensor]:
    """Of very different magnitudes, with ties and zeros."""

    def draw(parts: tuple[int, float, float]) -> Tensor:
        seed, scale, share = parts
        rng = np.random.default_rng(seed)
        vector = rng.standard_normal(length) * rng.integers(0, 3, length) * 10.0**scale
        return torch.from_numpy(np.where(rng.random(length) < share, vector, 0)).float()

    return st.tuples(st.integers(0, 2**32), st.floats(-30, 18), st.floats(0, 1)).map(draw)


def norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


@given(updates(), st.integers(1, P))
def test_top_k_keeps_the_largest_as_they_are_and_loses_at_most_its_share(
    update: Tensor, k: int
) -> None:
    sent = torch.empty_like(update)
    top_k.keep_largest(update, k, sent)
    kept = sent != 0
    assert int(kept.sum()) == min(k, int((update != 0).sum()))
    assert torch.equal(sent[kept], update[kept])
    if bool(kept.any()) and not bool(kept.all()):
        assert update[~kept].abs().max() <= sent[kept].abs().min()
    lost = norm(update - sent)
    assert lost**2 <= (1 - k / P) * norm(update) ** 2 * (1 + 1e-9)


def test_of_equal_elements_the_first_are_kept() -> None:
    sent = torch.empty(6)
    top_k.keep_largest(torch.tensor([1.0, -2.0, 2.0, 3.0, 2.0, 0.0]), 3, sent)
    assert sent.tolist() == [0.0, -2.0, 2.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("fraction", "length", "k"),
    [(0.07, 100, 7), (0.1, 641, 65), (0.1, 649, 65), (1e-12, 100, 1), (1.0, 7, 7)],
)
def test_a_fraction_is_rounded_up(fraction: float, length: int, k: int) -> None:
    """0.07 of 100 is 7, although the product is a little more."""
    alike = transform(top_k, length, k=k)
    assert transform(top_k, length, fraction=fraction).expected_bytes == alike.expected_bytes
    sent = send(transform(top_k, length, fraction=fraction), torch.arange(1.0, length + 1)).update
    assert int((sent != 0).sum()) == k


@given(st.lists(updates(), min_size=2, max_size=5))
@settings(max_examples=30)
def test_error_feedback_sends_later_what_it_left_out(sent: list[Tensor]) -> None:
    """All that was sent and what is kept add up to all updates."""
    feedback = transform(top_k, k=65, error_feedback=True)
    assert feedback.keeps_state
    total, received = torch.zeros(P, dtype=torch.float64), torch.zeros(P, dtype=torch.float64)
    for index, update in enumerate(sent):
        total += update
        received += send(feedback, update, user=4, index=index).update
        send(feedback, -update, user=5, index=index)
    kept = feedback.state_dict()["_errors"]
    assert set(kept) == {4, 5}
    largest = max(float(update.abs().max()) for update in sent)
    torch.testing.assert_close(received + kept[4], total, rtol=0, atol=largest * 1e-5)
    # Nothing of one client reaches another, and symmetric updates leave symmetric errors.
    torch.testing.assert_close(kept[4], -kept[5], rtol=0, atol=0)


def test_an_error_that_is_not_finite_is_not_kept() -> None:
    feedback = transform(top_k, k=65, error_feedback=True)
    send(feedback, torch.ones(P))
    send(feedback, torch.full((P,), math.nan))
    kept = feedback.state_dict()["_errors"][0]
    assert float(kept.sum()) == P - 65


@given(updates(), st.integers(1, 300), st.integers(2, 700), st.integers(0, 2**32))
def test_quantized_elements_are_neighbouring_levels(
    update: Tensor, levels: int, bucket_size: int, seed: int
) -> None:
    rounded = quantization.quantize(update, levels, bucket_size, np.random.default_rng(seed))
    assert rounded.shape == update.shape
    assert bool((rounded * update >= 0).all())
    for part, found in zip(update.split(bucket_size), rounded.split(bucket_size), strict=True):
        step = norm(part) / levels
        assert float((part - found).double().abs().max()) <= step * (1 + 1e-5) + 1e-44


def test_quantization_is_right_in_expectation_and_within_its_bound() -> None:
    rng = np.random.default_rng(0)
    update = torch.from_numpy(rng.uniform(0.5, 2, 64) * rng.choice([-1, 1], 64)).float()
    draws = torch.stack([quantization.quantize(update, 4, 16, rng) for _ in range(4000)])
    # Standard errors of the means, of which 64 lie within 5.
    errors = (draws.mean(0) - update).abs() / (draws.std(0) / math.sqrt(4000))
    assert float(errors.max()) < 5
    squared = float((draws - update).square().sum(1).mean())
    assert squared <= min(16 / 4**2, math.sqrt(16) / 4) * norm(update) ** 2


def test_levels_are_parts_of_the_l2_norm_and_draws_an_element_s_own() -> None:
    update = torch.tensor([3.0, 4.0] * 200)
    rounded = quantization.quantize(update, 1, 2, np.random.default_rng(0)).view(200, 2)
    assert set(rounded.unique().tolist()) == {0.0, 5.0}
    # Pairs of draws of the two elements in all their ways, and unlike from bucket to bucket.
    assert len(rounded.unique(dim=0)) == 4


def test_a_bucket_of_one_direction_is_exact() -> None:
    update = torch.zeros(512)
    update[17] = -3.0
    assert torch.equal(quantization.quantize(update, 1, 512, np.random.default_rng(0)), update)


def test_no_element_comes_out_beyond_the_last_level() -> None:
    """In float32 the largest of 32767 levels and a draw below 1 may add up to the next one."""
    update = torch.tensor([0.7, 0.0] * 20_000)
    rounded = quantization.quantize(update, 32_767, 2, np.random.default_rng(0))
    assert float(rounded.max()) <= 0.7 * (1 + 1e-6)


@given(updates(), st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_sketch_without_collisions_is_exact(update: Tensor, seed: int) -> None:
    hashing = count_sketch.Hashing(P, 3, P, np.random.default_rng(seed))
    assert torch.equal(hashing.estimates(hashing.table(update)), update)


def test_sketches_are_linear_and_right_in_expectation_with_their_variance() -> None:
    rng = np.random.default_rng(0)
    first, second = (torch.from_numpy(rng.standard_normal(50)).float() for _ in range(2))
    one = count_sketch.Hashing(50, 1, 7, rng)
    both = one.table(first) + one.table(second)
    torch.testing.assert_close(one.table(first + second), both)
    for rows in (1, 3):
        found = []
        for _ in range(1000):
            hashing = count_sketch.Hashing(50, rows, 7, rng)
            found.append(hashing.estimates(hashing.table(first)))
        draws = torch.stack(found)
        errors = (draws.mean(0) - first).abs() / (draws.std(0) / math.sqrt(1000))
        assert float(errors.max()) < 5
        # The median of three varies less than one row does.
        bound = norm(first) ** 2 / 7 * (1.0 if rows == 1 else 0.75)
        assert float(draws.var(0).max()) < bound * 1.2
    assert float(draws.var(0).max()) > 0.1 * norm(first) ** 2 / 7


def test_each_row_of_a_sketch_has_signs_of_its_own_and_any_shift() -> None:
    rng = np.random.default_rng(2)
    one = torch.eye(4)
    signs, meetings = [], []
    for _ in range(400):
        hashing = count_sketch.Hashing(4, 2, 2, rng)
        tables = [hashing.table(vector) for vector in one]
        signs.append(float(tables[0].sum(1).prod()))
        # Two elements of a block never meet, two of different blocks do with probability 1 / c.
        assert not (tables[0] * tables[1]).any()
        meetings.append((tables[0] * tables[2]).any(dim=1).tolist())
    # Means of 400 and 800 draws of probability 1 / 2: within five standard errors.
    assert abs(np.mean(signs)) < 5 / math.sqrt(400)
    assert abs(np.mean(meetings) - 0.5) < 2.5 / math.sqrt(800)
    # Nor do the rows' meetings hang together.
    assert abs(np.mean([a == b for a, b in meetings]) - 0.5) < 2.5 / math.sqrt(400)


def test_a_sketch_of_a_model_smaller_than_k_sends_all_that_it_reads() -> None:
    update = torch.randn(P, generator=torch.Generator().manual_seed(0))
    sent = [
        send(transform(count_sketch, columns=40, rows=3, k=k), update).update for k in (P, 1000)
    ]
    assert torch.equal(*sent)
    assert int((sent[0] != 0).sum()) > 600


def test_a_sketch_finds_the_few_elements_that_matter() -> None:
    rng = np.random.default_rng(1)
    update = torch.from_numpy(rng.standard_normal(20_000) * 1e-3).float()
    heavy = rng.choice(20_000, 20, replace=False)
    update[heavy] = torch.from_numpy(rng.choice([-1.0, 1.0], 20)).float()
    sketch = transform(count_sketch, 20_000, columns=1000, k=20)
    sent = send(sketch, update).update
    assert set(sent.nonzero().squeeze(1).tolist()) == set(heavy.tolist())
    torch.testing.assert_close(sent[heavy], update[heavy], rtol=0.05, atol=0)


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_the_median_is_torch_s(rows: int) -> None:
    vectors = torch.randn(rows, 1000, generator=torch.Generator().manual_seed(0))
    vectors[:, :5] = 0.0
    expected = vectors.median(0).values
    found = count_sketch._median(list(vectors.clone()), torch.empty(1000))
    assert torch.equal(found, expected)


def test_even_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="must be odd; try 3 or 5"):
        count_sketch.Options(columns=10, k=3, rows=4)


@pytest.mark.parametrize("num_bytes", [0, -1, math.nan])
def test_a_compression_to_nothing_is_refused(num_bytes: Any) -> None:
    with pytest.raises(PluginError, match="must be what a compressed update takes, above 0"):
        Compression(650, num_bytes)


@pytest.mark.parametrize("options", [{}, {"fraction": 0.1, "k": 3}])
def test_top_k_takes_one_size(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either fraction"):
        top_k.Options(**options)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(4))
def test_what_is_not_finite_stays_not_finite(place: int, value: float) -> None:
    update = torch.randn(P, generator=torch.Generator().manual_seed(0))
    update[100] = value
    sent = send(transforms()[place], update)
    assert not bool(sent.update.isfinite().all())
    total = torch.zeros(P)
    assert not add_clipped_(total, sent.update, 1.0).finite
    assert not total.any()


@pytest.mark.parametrize("place", range(4))
def test_zero_stays_zero_and_the_update_itself_is_left_alone(place: int) -> None:
    assert not send(transforms()[place], torch.zeros(P)).update.any()
    update = torch.randn(P, generator=torch.Generator().manual_seed(0))
    before = update.clone()
    send(transforms()[place], update)
    assert torch.equal(update, before)


@given(updates(), st.integers(0, 3))
@settings(max_examples=50)
def test_the_clip_bounds_what_is_compressed(update: Tensor, place: int) -> None:
    total = torch.zeros(P)
    add_clipped_(total, send(transforms()[place], update).update, 0.5)
    assert norm(total) <= 0.5


def test_draws_belong_to_the_round_and_the_client() -> None:
    update = torch.randn(P, generator=torch.Generator().manual_seed(0))
    for module, options in (
        (quantization, {"levels": 3}),
        (count_sketch, {"columns": 40, "k": 30, "rows": 1}),
    ):
        one = transform(module, **options)
        first = send(one, update, user=1, index=2).update.clone()
        others = [(1, 3), (2, 2)]
        assert all(not torch.equal(first, send(one, update, u, i).update) for u, i in others)
        assert torch.equal(first, send(transform(module, **options), update, 1, 2).update)
        other_seed = transform(module, seed=1, **options)
        assert not torch.equal(first, send(other_seed, update, 1, 2).update)
    # And are no draws of another purpose.
    rng = stream(0, Purpose.COMPRESSION, 2, 1)
    sent = send(transform(quantization, levels=3, bucket_size=50), update, 1, 2).update
    assert torch.equal(sent, quantization.quantize(update, 3, 50, rng))
    rng = stream(0, Purpose.COMPRESSION, 2, 1)
    hashing = count_sketch.Hashing(P, 1, 40, rng)
    sent = send(transform(count_sketch, columns=40, k=P, rows=1), update, 1, 2).update
    assert torch.equal(sent, hashing.estimates(hashing.table(update)))


@pytest.mark.parametrize(
    ("module", "options", "size"),
    [
        # 7 values, and their places in 10 bits each.
        (top_k, {"k": 7}, math.ceil(7 * 42 / 8)),
        # 65 values; a map of 650 bits is as long as 65 numbers of 10 bits.
        (top_k, {"fraction": 0.1}, math.ceil((65 * 32 + 650) / 8)),
        # 325 values, and a map.
        (top_k, {"fraction": 0.5}, math.ceil((325 * 32 + 650) / 8)),
        # Everything: as it is.
        (top_k, {"fraction": 1.0}, 4 * P),
        (top_k, {"k": 1000}, 4 * P),
        # 15 values in 4 bits, two norms.
        (quantization, {"levels": 7}, math.ceil((650 * 4 + 2 * 32) / 8)),
        (quantization, {"levels": 8, "bucket_size": 50}, math.ceil((650 * 5 + 13 * 32) / 8)),
        (quantization, {"levels": 32_767, "bucket_size": 2}, 4 * P),
        (count_sketch, {"columns": 40, "k": 30, "rows": 3}, 480),
        (count_sketch, {"columns": 650, "k": 30}, 4 * P),
    ],
)
def test_bytes_are_those_that_are_needed(module: Any, options: dict[str, Any], size: int) -> None:
    one = transform(module, **options)
    assert one.expected_bytes == size <= 4 * P
    update = torch.randn(P, generator=torch.Generator().manual_seed(0))
    sent = send(one, update)
    parts = replace(parts_of(make_config("federated")), transforms={"compression": one})
    assert sent.num_bytes == size == parts.upload_bytes
    assert torch.equal(sent.update, update) == (size == 4 * P)


@pytest.mark.parametrize("num_parameters", [1, 2, 3])
def test_the_smallest_models_can_be_sent(num_parameters: int) -> None:
    for one in (
        transform(top_k, num_parameters, k=1),
        transform(quantization, num_parameters, levels=1),
        transform(count_sketch, num_parameters, columns=1, k=1, rows=1),
    ):
        assert send(one, torch.ones(num_parameters)).num_bytes <= 4 * num_parameters


def compressed(compression: dict[str, Any], **changes: Any) -> ResolvedConfig:
    return make_config("federated", federated__compression=compression, **changes)


def test_draws_are_by_the_seed_of_the_run() -> None:
    update = torch.randn(P, generator=torch.Generator().manual_seed(0))
    for seed in (3, 4):
        parts = parts_of(compressed(QUANTIZATION, seed=seed))
        alike = transform(quantization, seed=seed, levels=7)
        sent = send(parts.transforms["compression"], update).update
        assert torch.equal(sent, send(alike, update).update)


def test_what_the_algorithm_sends_is_compressed_and_not_the_reverse() -> None:
    parts = parts_of(compressed(QUANTIZATION, federated__algorithm={"name": "fednova"}))
    assert list(parts.transforms) == ["algorithm", "compression"]


@pytest.mark.parametrize("compression", STATELESS, ids=lambda c: str(c["name"]))
def test_runs_learn_say_their_bytes_and_are_the_same_for_any_processes(
    compression: dict[str, Any], tmp_path: Path
) -> None:
    config = compressed(compression, federated__num_rounds=8)
    summary = run(config, tmp_path / "one")
    assert summary["metrics"]["test/accuracy"] > 0.5
    options = {key: value for key, value in compression.items() if key != "name"}
    size = transform(MODULES[compression["name"]], **options).expected_bytes
    for row in read_metrics(tmp_path / "one" / "metrics.jsonl"):
        assert row["systems/bytes_up"] == row["train/cohort_size"] * size
        assert row["systems/bytes_down"] == row["train/cohort_size"] * 4 * P
    run(config, tmp_path / "three", group=InTurn(3))
    assert torch.equal(central_of(tmp_path / "one"), central_of(tmp_path / "three"))


def test_what_clients_keep_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    config = compressed({**TOP_K, "error_feedback": True}, checkpoint={"every": 2, "keep": 10})
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    run(config, straight)
    run(config, cut)
    (cut / "summary.json").unlink()
    for path in (cut / "checkpoints").iterdir():
        if path.name != "step-00000002.pt":
            path.unlink()
    run(config, cut, resume=True)
    assert torch.equal(central_of(cut), central_of(straight))
    without = compressed(TOP_K)
    run(without, tmp_path / "without")
    assert not torch.equal(central_of(straight), central_of(tmp_path / "without"))


def test_several_processes_are_refused_what_clients_keep(tmp_path: Path) -> None:
    config = compressed({**TOP_K, "error_feedback": True})
    with pytest.raises(ConfigError, match=r"set federated\.workers: 1"):
        run(config, tmp_path / "run", group=InTurn(2))


@pytest.mark.parametrize("compression", STATELESS, ids=lambda c: str(c["name"]))
def test_a_private_run_may_compress_without_a_state(
    compression: dict[str, Any], tmp_path: Path
) -> None:
    mechanism = {"name": "gaussian", "clip_norm": 0.1}
    privacy = {"mechanism": mechanism, "population_size": 60, "noise_multiplier": 1.0}
    plain = run(make_config("federated", privacy=privacy), tmp_path / "plain")
    config = compressed(compression, privacy=privacy)
    summary = run(config, tmp_path / "run")
    assert summary["privacy"]["simulated"] == plain["privacy"]["simulated"]
    for line in read_ledger(tmp_path / "run" / "ledger.jsonl"):
        assert line["largest_clipped_norm"] <= 0.1


def test_a_private_run_refuses_what_clients_keep(tmp_path: Path) -> None:
    config = compressed({**TOP_K, "error_feedback": True}, privacy=PRIVACY)
    with pytest.raises(PlanError, match="compression without error feedback"):
        run(config, tmp_path / "run")


def test_what_clients_noise_themselves_cannot_be_compressed(tmp_path: Path) -> None:
    mechanism = {"name": "local_gaussian", "clip_norm": 0.5}
    privacy = {"mechanism": mechanism, "population_size": 60, "noise_multiplier": 1.0}
    config = compressed(
        TOP_K, privacy=privacy, federated__sampling="full", federated__cohort_size=60
    )
    with pytest.raises(ConfigError, match="leave compression out"):
        run(config, tmp_path / "run")
