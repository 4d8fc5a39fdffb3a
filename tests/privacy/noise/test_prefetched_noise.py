"""Noise that a thread draws while clients train is the noise that the stream gives, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench import plugins
from pfl_bench.runs.runner import run
from privacy.aggregate import Aggregate
from privacy.mechanism import Mechanism, NoiseScale
from privacy.noise import prefetched_noise as module
from privacy.noise.prefetched_noise import SMALLEST, PrefetchedNoise, prefetched_release
from tests.helpers import central_of, make_config

SIZE = SMALLEST + 7
# What each mechanism is given beside its bound, and whether its release begins with P normals.
MECHANISMS: dict[str, tuple[dict[str, Any], bool]] = {
    "gaussian": ({}, True),
    "adaptive_gaussian": ({"quantile": 0.5, "count_noise_stddev": 2.0}, True),
    "banded_matrix_factorization": ({"bands": 2}, True),
    "buffered_toeplitz": ({"buffers": 2}, True),
    "banded_inverse_square_root": ({"bands": 2}, True),
    "column_normalized_banded": ({"bands": 2}, True),
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


def test_each_mechanism_that_says_so_is_looked_at() -> None:
    named = set()
    for name in plugins.available(plugins.MECHANISM):
        module = vars(plugins.load(plugins.MECHANISM, name))
        if any(getattr(kind, "begins_with_normals", False) for kind in module.values()):
            named.add(name)
    assert named == {name for name, (_, begins) in MECHANISMS.items() if begins}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PrefetchedNoise]:
    """What prefetches, as it is made."""
    found: list[PrefetchedNoise] = []
    init = PrefetchedNoise.__init__

    def note(self: PrefetchedNoise, *args: Any) -> None:
        found.append(self)
        init(self, *args)

    monkeypatch.setattr(PrefetchedNoise, "__init__", note)
    return found


@pytest.mark.parametrize("name", MECHANISMS)
def test_releases_are_those_of_the_stream_to_the_last_bit(
    name: str, made: list[PrefetchedNoise]
) -> None:
    plain, ahead = make(name), make(name)
    for number in range(3):
        before = plain.release(Aggregate.zeros(SIZE), stream(number))
        after = prefetched_release(stream(number), ahead, SIZE)(Aggregate.zeros(SIZE))
        assert torch.equal(after.mean_update, before.mean_update)
        assert after.noisy_fraction_unclipped == before.noisy_fraction_unclipped
        assert len(made) == (number + 1 if MECHANISMS[name][1] else 0)
        for noise in made:
            # The release took all that the thread had drawn, so it was not drawn for nothing.
            assert noise.standard_normal() not in noise._drawn


def test_draws_beyond_those_of_the_thread_go_on_where_it_stopped() -> None:
    ahead, plain = PrefetchedNoise(stream(), 1000), stream()
    for size in (700, 700, None, 5, 0):
        found = ahead.standard_normal(size)
        assert np.array_equal(found, plain.standard_normal(size))


def test_there_is_no_other_draw() -> None:
    # The generator itself is not given, so that nothing can be drawn out of order.
    ahead = PrefetchedNoise(stream(), 1000)
    assert {name for name in dir(ahead) if not name.startswith("_")} == {"standard_normal"}


def test_no_more_than_the_largest_piece_is_held(
    monkeypatch: pytest.MonkeyPatch, made: list[PrefetchedNoise]
) -> None:
    monkeypatch.setattr(module, "_LARGEST", 1000)
    prefetched_release(stream(), make("gaussian"), SIZE)
    (ahead,) = made
    assert len(ahead._drawn) == 1000
    assert np.array_equal(ahead.standard_normal(SIZE), stream().standard_normal(SIZE))


def test_no_thread_for_little_noise_or_none(made: list[PrefetchedNoise]) -> None:
    prefetched_release(stream(), make("gaussian"), SMALLEST - 1)
    prefetched_release(stream(), make("gaussian", 0.0), SIZE)
    prefetched_release(stream(), make("laplace"), SIZE)
    assert not made


def test_a_thread_that_fails_gives_an_error_and_no_noise() -> None:
    class Failing:
        def standard_normal(self, out: Any) -> None:
            out[: len(out) // 2] = 0.5
            raise MemoryError("no room")

    noise: Any = PrefetchedNoise(Failing(), SIZE)  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match="no room"):
        make("gaussian").release(Aggregate.zeros(SIZE), noise)
    with pytest.raises(MemoryError, match="no room"):
        noise.standard_normal()


def test_a_run_is_the_same_with_and_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("private_federated")
    threads: list[Any] = []
    init = PrefetchedNoise.__init__

    def count(self: PrefetchedNoise, *args: Any) -> None:
        threads.append(args)
        init(self, *args)

    monkeypatch.setattr(PrefetchedNoise, "__init__", count)
    run(config, tmp_path / "plain")
    assert not threads
    monkeypatch.setattr(module, "SMALLEST", 1)
    run(config, tmp_path / "ahead")
    central = central_of(tmp_path / "ahead")
    assert [count for _, count in threads] == [len(central)] * 6
    assert torch.equal(central, central_of(tmp_path / "plain"))
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("plain", "ahead")]
    assert ledgers[0] == ledgers[1]
