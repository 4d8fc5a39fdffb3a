"""bfloat16 and TF32: what they are, that both engines mean the same, and what stays float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.cli.main import main
from pfl_bench.client import precision
from pfl_bench.client.batched.convolution import convolve
from pfl_bench.client.batched.layers import find
from pfl_bench.client.batched.slot_weights import SlotWeights
from pfl_bench.client.batched.step_context import StepContext
from pfl_bench.client.engines import sequential, vectorized
from pfl_bench.client.factored_gradients import SMALLEST, FactoredGradient, FactoredGradients
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.config.loading import ResolvedConfig, resolve
from pfl_bench.federated.parts import build_forward, build_model, build_task
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, LocalResult, LocalTraining
from privacy.ledger import read_ledger
from tasks.common.lstm.stacked_lstm import LARGE_HIDDEN_SIZE, LstmLayer
from tests.contracts import small_stores
from tests.helpers import make_config, seed_of

CPU = torch.device("cpu")
LOCAL = LocalTraining(epochs=2, batch_size=3, learning_rate=0.05)
# A number in bfloat16 is right to 2**-9, and a step rounds images, kernels, outputs and slopes of
# each layer once: a few per cent of an update. The engines round in the same places; where their
# float32 sums differ in the last bit, one of them may round up and the other down.
ROUNDING = 0.03
# Where two of a pool's four elements round to one number, its slope goes to another of them than in
# float32: up to 0.12 of an update was seen.
POOLED = 0.2
# Without such instructions the engines' convolutions round in other places, and pooling then takes
# other pixels. Distance of updates and of losses.
HAS_AVX512 = "AVX512" in torch.backends.cpu.get_cpu_capability()
BETWEEN_ENGINES = (ROUNDING, 1e-4) if HAS_AVX512 else (POOLED, 1e-3)


@pytest.fixture(scope="module")
def femnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "femnist.h5"
    small_stores.write_femnist(path)
    return path


def configure(task: dict[str, Any], model: str, arithmetic: str) -> ResolvedConfig:
    tree = {
        "version": 1,
        "name": "precision",
        "device": "cpu",
        "precision": arithmetic,
        "task": task,
        "model": {"name": model},
        "federated": {
            "num_rounds": 1,
            "cohort_size": 5,
            "local_batch_size": 3,
            "local_learning_rate": 0.1,
        },
        "evaluation": {"final_splits": []},
    }
    return resolve(tree, Path("test.yaml"), ())


def updates(
    resolved: ResolvedConfig, engine: str, local: LocalTraining = LOCAL, users: int = 3
) -> dict[int, LocalResult]:
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, model)
    central, split = model.vector.clone(), task.split("train")
    built: Any
    if engine == "sequential":
        built = sequential.SequentialEngine(
            sequential.Options(), model, split, forward, local, seed=7
        )
    else:
        built = vectorized.VectorizedEngine(
            vectorized.Options(slots=2), model, split, forward, local, seed=7
        )
    return {
        result.user: replace(result, update=result.update.clone(), loss=result.loss.clone())
        for result in built.train(np.arange(users), 1, central)
    }


def distance(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).norm()) / float(theirs.norm())


@pytest.mark.parametrize("model", ["cnn", "leaf_cnn", "softmax"])
def test_both_engines_round_the_same_to_bfloat16_s_digits(model: str, femnist: Path) -> None:
    task = {"name": "femnist", "data": str(femnist)}
    mixed = configure(task, model, "bfloat16")
    theirs, ours = updates(mixed, "sequential"), updates(mixed, "vectorized")
    exact = updates(configure(task, model, "float32"), "sequential")
    for user, expected in exact.items():
        assert ours[user].update.dtype == theirs[user].update.dtype == torch.float32
        assert distance(ours[user].update, theirs[user].update) < BETWEEN_ENGINES[0]
        assert distance(ours[user].update, expected.update) < POOLED
        rtol = BETWEEN_ENGINES[1]
        torch.testing.assert_close(ours[user].loss, theirs[user].loss, rtol=rtol, atol=0)
        torch.testing.assert_close(ours[user].loss, expected.loss, rtol=0.003, atol=0)
        assert ours[user].loss.dtype == torch.float32
    if model != "softmax":
        assert all(not torch.equal(ours[u].update, exact[u].update) for u in exact)


def test_large_batches_go_through_bfloat16_in_linear_layers_too() -> None:
    local = replace(LOCAL, batch_size=precision.FEW_ROWS + 8, batch_fraction=1.0, epochs=1)
    task = {"name": "digits", "num_users": 20}
    mixed = configure(task, "mlp", "bfloat16")
    ours, theirs = updates(mixed, "vectorized", local, 20), updates(mixed, "sequential", local, 20)
    exact = updates(configure(task, "mlp", "float32"), "vectorized", local, 20)
    large = [u for u, result in exact.items() if result.num_examples > precision.FEW_ROWS]
    assert large
    for user in large:
        assert not torch.equal(ours[user].update, exact[user].update)
        assert distance(ours[user].update, theirs[user].update) < ROUNDING


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 8, 5, padding=2),
        nn.Conv2d(4, 8, 3, bias=False),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(4, 6, 3, dilation=2),
    ],
    ids=str,
)
def test_slots_convolve_as_autocast_does(layer: nn.Conv2d) -> None:
    torch.manual_seed(0)
    slots = 2
    inputs = torch.randn(slots * 3, layer.in_channels, 12, 12)
    weights = torch.randn(slots, *layer.weight.shape, requires_grad=True)
    bias = (
        torch.randn(slots, layer.out_channels, requires_grad=True)
        if layer.bias is not None
        else None
    )
    images = inputs.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = convolve(layer, images, weights, bias)
        theirs = torch.cat(
            [
                functional.conv2d(
                    part,
                    weights[slot],
                    None if bias is None else bias[slot],
                    layer.stride,
                    layer.padding,
                    layer.dilation,
                    layer.groups,
                )
                for slot, part in enumerate(images.chunk(slots))
            ]
        )
    assert ours.dtype == theirs.dtype == torch.bfloat16
    wanted = [images, weights] + ([] if bias is None else [bias])
    slopes = torch.randn(ours.shape)
    found = torch.autograd.grad((ours.float() * slopes).sum(), wanted)
    expected = torch.autograd.grad((theirs.float() * slopes).sum(), wanted)
    assert distance(ours.float(), theirs.float()) < 2**-8
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert distance(one, other) < 2**-7


@pytest.mark.parametrize("rows", [3, precision.FEW_ROWS, precision.FEW_ROWS + 1])
@pytest.mark.parametrize("bias", [True, False])
def test_slots_linear_layers_are_autocast_s_or_float32(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer, slots = nn.Linear(40, 8, bias=bias), 2
    model = FlatModel(nn.Sequential(layer), CPU)
    weights = SlotWeights(model, slots)
    start = weights.views(model.vector)
    for slot in range(slots):
        weights.load(slot, start)
    frame = StepContext(weights)
    build = find(layer)
    assert build is not None
    leaves = frame.begin([rows] * slots, None)
    inputs = torch.randn(slots * rows, 40, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = build(layer, frame)(inputs)
    mixed = rows > precision.FEW_ROWS
    assert outputs.dtype == (torch.bfloat16 if mixed else torch.float32)
    slopes = torch.randn(outputs.shape)
    loss = (outputs.float() * slopes).sum()
    found = torch.autograd.grad(loss, [*leaves, inputs], allow_unused=True)
    gradients = frame.take(found[:-1])
    exact = layer(inputs)
    tolerance = ROUNDING if mixed else 1e-5
    assert distance(outputs.float(), exact) < tolerance
    assert distance(found[-1], torch.autograd.grad((exact * slopes).sum(), inputs)[0]) < tolerance
    parameters = list(layer.parameters())
    for slot in range(slots):
        part = slice(slot * rows, (slot + 1) * rows)
        loss = (layer(inputs[part]) * slopes[part]).sum()
        expected = torch.autograd.grad(loss, parameters)
        for gradient, wanted in zip(gradients, expected, strict=True):
            assert gradient is not None
            sums = torch.zeros(slots, *wanted.shape)
            gradient.add_to(sums, 1.0)
            assert distance(sums[slot], wanted) < tolerance


def test_few_rows_keep_their_products_in_float32_under_autocast() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(SMALLEST // 16, 16)
    parameters = list(layer.parameters())
    inputs = torch.randn(4, layer.in_features).bfloat16()
    kept = FactoredGradients(layer, parameters)
    with kept, torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = layer(inputs)
        many = layer(inputs.repeat(20, 1))
    assert outputs.dtype == torch.float32
    assert many.dtype == torch.bfloat16
    with kept:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = layer(inputs)
        found = kept.take(torch.autograd.grad(outputs.sum(), parameters, allow_unused=True))
    assert isinstance(found[0], FactoredGradient)
    torch.testing.assert_close(found[0].dense(), inputs.float().sum(0).expand(16, -1))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_private_run_in_bfloat16_is_close_and_its_bound_is_exact(
    engine: str, tmp_path: Path
) -> None:
    central = {}
    for arithmetic in ("float32", "bfloat16"):
        config = make_config(
            "private_federated",
            precision=arithmetic,
            model={"name": "mlp"},
            federated__engine=engine,
            federated__local_batch_size=64,
            privacy__mechanism={"name": "gaussian", "clip_norm": 0.05},
            # Private runs of two precisions share no noise; here they do, to be compared.
            privacy__nonce=11,
        )
        run(config, tmp_path / arithmetic)
        lines = read_ledger(tmp_path / arithmetic / "ledger.jsonl")
        moved = [line["probe"]["moved"] for line in lines if line["probe"]]
        assert moved
        # The sum itself is float32: what it moved by has the rounding of its elements.
        assert all(step <= 0.05 * (1 + 1e-5) for step in moved)
        assert any(step > 0.05 * (1 - 1e-4) for step in moved)
        state = torch.load(tmp_path / arithmetic / "checkpoints" / "step-00000006.pt")
        assert state["trainer"]["central"].dtype == torch.float32
        central[arithmetic] = state["trainer"]["central"]
    assert not torch.equal(central["float32"], central["bfloat16"])
    assert distance(central["bfloat16"], central["float32"]) < 1e-3


def test_auto_is_float32_and_changes_no_run() -> None:
    def of(**changes: Any) -> ResolvedConfig:
        return make_config("private_federated", **changes)

    def seed(**changes: Any) -> int:
        return seed_of(of(**changes))

    assert of(precision="auto").config.precision == "float32"
    assert of(precision="auto").tree == of().tree == of(precision="float32").tree
    assert seed(precision="auto") == seed() == seed(precision="float32")
    assert len({seed(), seed(precision="bfloat16"), seed(precision="tf32")}) == 3


def test_tf32_is_refused_where_there_is_none_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["demo/federated.yaml", "precision=tf32", "device=cpu"]
    assert main(["run", *arguments, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "precision: tf32" in said
    assert "float32" in said
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert main(["run", "demo/federated.yaml", "precision=fp16", "--out", str(tmp_path)]) == 2
    assert "'bfloat16'" in capsys.readouterr().err


def test_gpus_older_than_ampere_have_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an older GPU")
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    with pytest.raises(ConfigError, match=r"8\.0 .* an older GPU has 7\.5"):
        precision.use("tf32", cuda)
    said = precision.slow_notice("bfloat16", cuda)
    assert said is not None
    assert "an older GPU" in said


@pytest.fixture
def restored_flags() -> Any:
    parts: Any = (
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn,  # type: ignore[attr-defined]
    )
    before = [part.fp32_precision for part in parts]
    yield parts
    for part, word in zip(parts, before, strict=True):
        part.fp32_precision = word


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="needs the switches of PyTorch 2.9"
)
def test_the_process_is_set_to_tf32_and_back_without_a_warning(
    restored_flags: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ampere, the first that has it.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    cuda = torch.device("cuda")
    assert precision.slow_notice("bfloat16", cuda) is None
    for arithmetic, word in (("tf32", "tf32"), ("float32", "ieee"), ("bfloat16", "ieee")):
        precision.use(arithmetic, cuda)
        assert [part.fp32_precision for part in restored_flags] == [word] * 3


def test_a_processor_without_units_is_told_of_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    assert run(make_config("federated", precision="bfloat16"), tmp_path / "slow")["rounds"] == 6
    log = (tmp_path / "slow" / "run.log").read_text(encoding="utf-8")
    assert "no bfloat16 units" in log
    assert precision.slow_notice("float32", CPU) is None


def test_the_processor_s_units_are_those_that_it_names() -> None:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        pytest.skip("there is no /proc/cpuinfo")
    if "flags" not in flags:
        pytest.skip("the processor is no x86")
    assert precision.cpu_has_bfloat16() == ("avx512_bf16" in flags or "amx_tile" in flags)


@pytest.mark.parametrize("direction", ["coordinate", "sphere"])
def test_a_run_of_many_clients_is_summed_in_float64_and_passes_its_audit(
    direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy.aggregate.MANY_CLIENTS", 10)
    seen: list[torch.dtype] = []
    from privacy.mechanisms.gaussian import Gaussian

    release = Gaussian.release

    def watched(self: Gaussian, aggregate: Any, rng: Any) -> Any:
        seen.append(aggregate.total.dtype)
        return release(self, aggregate, rng)

    monkeypatch.setattr(Gaussian, "release", watched)
    config = make_config(
        "private_federated",
        privacy__mechanism={"name": "gaussian", "clip_norm": 0.3},
        privacy__audit={"kind": "one_run", "count": 8, "direction": direction},
    )
    run(config, tmp_path / "run")
    assert set(seen) == {torch.float64}
    assert not [c for c in audit_run(tmp_path / "run", 1).checks if c.outcome == "failed"]


def test_autocast_is_not_entered_where_float32_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    autocast: Callable[..., Any] = torch.autocast

    def counted(kind: str, *arguments: Any, **options: Any) -> Any:
        entered.append(kind)
        return autocast(kind, *arguments, **options)

    monkeypatch.setattr(torch, "autocast", counted)
    updates(configure({"name": "digits", "num_users": 20}, "mlp", "float32"), "vectorized")
    assert not entered


@pytest.mark.parametrize("slots", [1, 2])
def test_an_lstm_of_short_sequences_is_float32_on_a_cpu(slots: int) -> None:
    """Its own passes, one client or several, under autocast and without."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        layer = LstmLayer(12, LARGE_HIDDEN_SIZE)
        inputs = torch.randn(slots * 2, 5, 12)
        weights = {name: p.detach().expand(slots, *p.shape) for name, p in layer.named_parameters()}
        expected = layer(inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            alone, together = layer(inputs), layer.forward_slots(inputs.bfloat16(), weights)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone, expected)
    assert together.dtype == torch.float32
    # The inputs alone are rounded.
    assert 0 < distance(together, expected) < 2**-7
