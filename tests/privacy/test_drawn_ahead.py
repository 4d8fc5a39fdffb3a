"""Noise that a thread draws while clients train is the noise that the stream gives, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench import plugins
from pfl_bench.runner import run
from privacy import drawn_ahead as module
from privacy.aggregate import Aggregate
from privacy.drawn_ahead import SMALLEST, DrawnAhead, drawn_ahead
from privacy.mechanism import Mechanism, NoiseScale
from tests.helpers import central_of, make_config

SIZE = SMALLEST + 7
# What each mechanism is given beside its bound, and whether its release begins with P normals.
MECHANISMS: dict[str, tuple[dict[str, Any], bool]] = {
    "gaussian": ({}, True),
    "adaptive_gaussian": ({"quantile": 0.5, "count_noise_stddev": 2.0}, True),
    "banded_matrix_factorization": ({"bands": 2}, True),
    "tree_aggregation": ({}, True),
    "laplace": ({}, False),
    "local_gaussian": ({}, False),
    "privunit": ({}, False),
}


def stream(number: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(number))


def make(name: str, multiplier: float = 1.0) -> Mechanism:
    built = plugins.load(plugins.MECHANISM, name)
    options = built.Options(clip_norm=0.5, **MECHANISMS[name][0])
    mechanism: Mechanism = built.build(
        options, NoiseScale(multiplier, 10.0, 10.0, num_rounds=4, separation=2)
    )
    return mechanism


def test_each_private_mechanism_is_looked_at() -> None:
    assert set(MECHANISMS) == set(plugins.available(plugins.MECHANISM)) - {"none"}


@pytest.mark.parametrize("name", MECHANISMS)
def test_releases_are_those_of_the_stream_to_the_last_bit(name: str) -> None:
    plain, ahead = make(name), make(name)
    for number in range(3):
        before = plain.release(Aggregate.zeros(SIZE), stream(number))
        noise = drawn_ahead(stream(number), ahead, SIZE)
        assert isinstance(noise, DrawnAhead) == MECHANISMS[name][1]
        after = ahead.release(Aggregate.zeros(SIZE), noise)
        assert torch.equal(after.mean_update, before.mean_update)
        assert after.noisy_fraction_unclipped == before.noisy_fraction_unclipped
        if isinstance(noise, DrawnAhead):
            # The release took all that the thread had drawn, so it was not drawn for nothing.
            assert noise.standard_normal() not in noise._drawn


def test_draws_beyond_those_of_the_thread_go_on_where_it_stopped() -> None:
    ahead, plain = DrawnAhead(stream(), 1000), stream()
    for size in (700, 700, None, 5, 0):
        found = ahead.standard_normal(size)
        assert np.array_equal(found, plain.standard_normal(size))
    late, plain = DrawnAhead(stream(), 1000), stream()
    plain.standard_normal(1000)
    assert np.array_equal(late.laplace(size=9), plain.laplace(size=9))


def test_no_thread_for_little_noise_or_none() -> None:
    rng = stream()
    assert drawn_ahead(rng, make("gaussian"), SMALLEST - 1) is rng
    assert drawn_ahead(rng, make("gaussian", 0.0), SIZE) is rng
    assert drawn_ahead(rng, make("laplace"), SIZE) is rng


def test_a_thread_that_fails_gives_an_error_and_no_noise() -> None:
    class Failing:
        def standard_normal(self, out: Any) -> None:
            out[: len(out) // 2] = 0.5
            raise MemoryError("no room")

    noise: Any = DrawnAhead(Failing(), SIZE)  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match="no room"):
        make("gaussian").release(Aggregate.zeros(SIZE), noise)
    with pytest.raises(MemoryError, match="no room"):
        noise.laplace(1.0)


def test_a_run_is_the_same_with_and_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("private_federated")
    threads = []
    init = DrawnAhead.__init__

    def count(self: DrawnAhead, *args: Any) -> None:
        threads.append(args)
        init(self, *args)

    monkeypatch.setattr(DrawnAhead, "__init__", count)
    run(config, tmp_path / "plain")
    assert not threads
    monkeypatch.setattr(module, "SMALLEST", 1)
    run(config, tmp_path / "ahead")
    assert len(threads) == 6
    assert torch.equal(central_of(tmp_path / "ahead"), central_of(tmp_path / "plain"))
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("plain", "ahead")]
    assert ledgers[0] == ledgers[1]
