"""Steps as CUDA graphs compute what the same steps compute one kernel at a time, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_bench.client.batched.graphs import StepGraphs
from pfl_bench.client.costs import measure_step
from pfl_bench.client.engines.vectorized import VectorizedEngine
from pfl_bench.client.precision import resolve_device
from pfl_bench.federated import autotune
from pfl_bench.federated.parts import FederatedParts, build_engine, build_model, build_task
from pfl_bench.types import LocalResult
from tests.equivalence.engines import MODELS, configure, trained

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
Stores = Callable[[str], Path]
OPTIONS = {
    "engine": "vectorized",
    "engine_lanes": 3,
    "local_momentum": 0.5,
    "local_epochs": 2,
    # A step that reads the central parameters, too.
    "algorithm": {"name": "fedprox", "proximal_weight": 0.5},
}


def engine_of(
    stores: Stores, notices: list[str], model: str = "femnist-cnn", **federated: Any
) -> tuple[VectorizedEngine, torch.Tensor]:
    """An engine of a model, by default a CNN with dropout, and its start."""
    name = model.partition("-")[0]
    task_options, model_options = MODELS[model]
    task = {"name": name, "data": str(stores(name)), **task_options}
    resolved = configure(task, model_options, **OPTIONS | federated)
    place = resolve_device("cuda")
    opened = build_task(resolved, place)
    flat = build_model(resolved, opened, place)
    engine = build_engine(FederatedParts.build(resolved, opened, flat), notices.append)
    assert isinstance(engine, VectorizedEngine)
    return engine, flat.vector.clone()


def rounds(engine: VectorizedEngine, start: torch.Tensor) -> list[dict[int, LocalResult]]:
    """Two rounds of clients, more than there are slots; the second from elsewhere."""
    central = start.clone()
    first = trained(engine, range(5), central)
    return [first, trained(engine, range(1, 6), central + 0.01, 2)]


def assert_same(ours: list[dict[int, LocalResult]], theirs: list[dict[int, LocalResult]]) -> None:
    for found, expected in zip(ours, theirs, strict=True):
        assert found.keys() == expected.keys()
        for user, result in found.items():
            assert torch.equal(result.update, expected[user].update)
            assert float(result.loss) == float(expected[user].loss)


def test_a_graph_takes_the_steps_of_its_kernels(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    ours = rounds(*(made := engine_of(stores, notices)))
    graphs = made[0]._graphs
    assert graphs is not None
    assert not notices
    assert sum(recorded is not None for recorded in graphs._recorded.values()) > 1
    monkeypatch.setattr(StepGraphs, "_record", lambda self, batch, take: None)
    assert_same(ours, rounds(*engine_of(stores, notices)))


def test_a_step_that_waits_for_the_device_stays_eager(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    expected = rounds(*engine_of(stores, notices))
    take = VectorizedEngine._take

    def waiting(engine: VectorizedEngine, batch: Any) -> None:
        take(engine, batch)
        float(batch.shares.sum())

    def end(recording: Any, *raised: Any) -> None:
        """As in PyTorch before 2.15."""
        recording.cuda_graph.capture_end()
        recording.stream_ctx.__exit__(*raised)

    monkeypatch.setattr(VectorizedEngine, "_take", waiting)
    monkeypatch.setattr(torch.cuda.graph, "__exit__", end)
    assert_same(rounds(*engine_of(stores, notices)), expected)
    assert len(notices) == 1
    assert "CUDA graphs" in notices[0]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_client_has_the_same_masks_whoever_trains_beside_it(stores: Stores) -> None:
    alone, start = engine_of(stores, [], engine_lanes=1)
    together, _ = engine_of(stores, [])
    for user, result in trained(together, range(5), start).items():
        expected = trained(alone, [user], start)[user]
        assert float((result.update - expected.update).norm()) <= 1e-4 * expected.update.norm()


@pytest.mark.parametrize("model", ["femnist-cnn", "sent140-lstm", "shakespeare-lstm"])
def test_a_graph_is_one_launch(
    model: str, stores: Stores, record_property: Callable[[str, object], None]
) -> None:
    """With the launches that begin and end clients; ``cuda_budgets.json`` has the most."""
    notices: list[str] = []
    # The steps of 80 characters, most of whose launches are those of its recording, are dear.
    epochs = 5 if model == "shakespeare-lstm" else 20
    engine, start = engine_of(stores, notices, model, local_epochs=epochs)
    steps = sum(result.num_steps for result in trained(engine, range(3), start).values())
    assert not notices
    record_property("steps", steps)


def test_auto_measures_engines_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(autotune, "_SHARE", float("inf"))
    resolved, place = configure({"name": "digits"}, {"name": "softmax"}), resolve_device("cuda")
    task = build_task(resolved, place)
    parts = FederatedParts.build(resolved, task, build_model(resolved, task, place))
    step = measure_step(parts.forward, parts.model, parts.split)
    said: list[str] = []
    autotune.settle(parts, step, tmp_path, None, said.append)
    assert "sequential" in said[0]
    assert "256 slots" in said[0]
    (kept,) = (tmp_path / "cache" / "engines").iterdir()
    assert torch.cuda.get_device_name(place) in kept.read_text(encoding="utf-8")
