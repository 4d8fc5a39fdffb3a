"""Weights in torchvision's format, drawn here: no test fetches the published ones."""

from __future__ import annotations

import hashlib
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import get_model, list_models

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.model_checks import batchnorm_layers
from pfl_bench.config.loading import resolve
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataFacts
from tasks.common.vision.normalization import FrozenStatisticsNorm
from tasks.flair import models, pretrained
from tests.tasks.flair_store import write_store

FACTS = DataFacts("drawn by a test", "test", "sha256:0", 5, (3, 64, 64), "user")
# Small, with every layer kind that the conversion meets; the ResNet is tried where it matters.
NAME = "shufflenet_v2_x0_5"


def drawn(name: str, **settings: object) -> nn.Module:
    """A torchvision network whose statistics, scales and biases are as if it had been trained."""
    torch.manual_seed(5)
    module: nn.Module = get_model(name, weights=None, **settings)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.1)
    return module.eval()


def save(state: object, folder: Path, stem: str = NAME) -> Path:
    """Save as torchvision publishes: the name ends with the first digits of the SHA-256."""
    path = folder / "unnamed.pth"
    torch.save(state, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path.rename(folder / f"{stem}-{digest[:8]}.pth")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return drawn(NAME)


@pytest.fixture(scope="module")
def published_file(network: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(network.state_dict(), tmp_path_factory.mktemp("published"))


class Server(ThreadingHTTPServer):
    """Gives one body at any address, or a status without one."""

    body: bytes | int = 404
    requests = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        if isinstance(self.server.body, int):
            self.send_error(self.server.body)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(
    published_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """The place where the weights are published, with an empty cache."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    with Server(("127.0.0.1", 0), Handler) as server:
        publish(monkeypatch, published_file, f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, path: Path, place: str = "http://127.0.0.1:9") -> None:
    """Make ``path`` the published file, of a place that by default answers nothing."""
    weights = pretrained.PublishedWeights(f"{place}/{path.name}", path.name, path.stem[-8:])
    monkeypatch.setattr(pretrained, "published_weights", lambda name: weights)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "torch" / "hub" / "checkpoints"


def build(facts: DataFacts = FACTS, **options: object) -> nn.Module:
    chosen = {"name": NAME, "init": "imagenet", "normalization": "frozen", **options}
    return models.build(models.Options(**chosen), facts)  # type: ignore[arg-type]


def trunk(module: nn.Module) -> dict[str, Tensor]:
    state = module.state_dict()
    return {k: v for k, v in state.items() if not k.startswith("fc.") and "num_batches" not in k}


def assert_has_weights_of(module: nn.Module, network: nn.Module) -> None:
    ours, theirs = trunk(module), trunk(network)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.fixture(scope="module")
def resnet_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(drawn("resnet18").state_dict(), tmp_path_factory.mktemp("resnet"), "resnet18")


def test_the_pretrained_resnet_is_torchvisions_own_in_evaluation(
    resnet_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, resnet_file)
    reference = drawn("resnet18")
    inputs = torch.randn(3, 3, 64, 64)
    facts = DataFacts("drawn by a test", "test", "sha256:0", 1_000, (3, 64, 64), "user")
    module = build(facts, name="resnet18", weights=str(resnet_file))
    assert not batchnorm_layers(module)
    head = module.get_submodule("fc")
    assert not torch.equal(head.weight, reference.get_submodule("fc").weight)  # type: ignore[arg-type]
    head.load_state_dict(reference.get_submodule("fc").state_dict())
    assert module.training
    assert torch.equal(module(inputs), reference(inputs))
    module.eval()
    assert torch.equal(module(inputs), reference(inputs))


@pytest.mark.parametrize(
    ("train", "num_trained"),
    # As in the tests of networks from scratch: frozen statistics are no parameters.
    [("all", 11_176_512), ("head", 0), ("last_block", 8_393_728), ("film", 9_600)],
)
def test_statistics_are_no_parameters_and_do_not_move(
    train: str, num_trained: int, resnet_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, resnet_file)
    module = build(name="resnet18", weights=str(resnet_file), train=train)
    flat = FlatModel(module, torch.device("cpu"))
    assert flat.num_parameters == num_trained + 513 * 5
    before = flat.buffers()
    layers = [layer for layer in module.modules() if isinstance(layer, FrozenStatisticsNorm)]
    assert len(layers) == 20
    assert len(before) == 40
    scales = [layer.weight.detach().clone() for layer in layers]
    module.train()
    outputs = module(torch.randn(4, 3, 64, 64) * 3 + 2)
    loss = functional.binary_cross_entropy_with_logits(outputs, torch.ones(4, 5))
    torch._foreach_add_(flat.slices, torch.autograd.grad(loss, flat.parameters), alpha=-0.1)
    assert all(torch.equal(value, before[name]) for name, value in module.named_buffers())
    moved = [not torch.equal(a, b.weight) for a, b in zip(scales, layers, strict=True)]
    # layer4 has the last five of the twenty.
    assert sum(moved) == {"all": 20, "film": 20, "last_block": 5, "head": 0}[train]


def test_weights_are_downloaded_once_and_then_taken_from_the_cache(
    server: Server, published_file: Path, cache: Path, network: nn.Module
) -> None:
    server.body = published_file.read_bytes()
    assert_has_weights_of(build(), network)
    assert [path.name for path in cache.iterdir()] == [published_file.name]
    server.body = 500
    assert_has_weights_of(build(), network)
    assert server.requests == 1


def test_without_network_the_message_says_which_file_to_put_where(
    server: Server, published_file: Path, cache: Path, network: nn.Module
) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(ConfigError) as caught:
        build()
    for part in (published_file.name, str(cache), "refused", "model.weights=PATH"):
        assert part in str(caught.value)
    shutil.copy(published_file, cache)
    assert_has_weights_of(build(), network)


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_has_no_such_file_is_named(server: Server, status: int, cache: Path) -> None:
    server.body = status
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1.*{status}.*model\.weights=PATH"):
        build()
    assert not list(cache.iterdir())


def test_a_wrong_download_is_refused_and_leaves_nothing(
    server: Server, published_file: Path, cache: Path
) -> None:
    server.body = published_file.read_bytes()[:-1]
    with pytest.raises(ConfigError, match=r"SHA-256 should begin with"):
        build()
    assert not list(cache.iterdir())


def test_a_damaged_cache_is_refused(server: Server, published_file: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / published_file.name).write_bytes(published_file.read_bytes()[: 1 << 18])
    with pytest.raises(ConfigError, match=rf"{published_file.name}: is damaged.*delete it"):
        build()
    assert server.requests == 0


def test_a_cached_file_that_cannot_be_read_is_told(
    server: Server, published_file: Path, cache: Path
) -> None:
    (cache / published_file.name).mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=rf"{published_file.name}: cannot be read .*; give a file"
    ):
        build()
    assert server.requests == 0


def test_a_given_file_needs_neither_cache_nor_network(
    server: Server, published_file: Path, network: nn.Module, cache: Path
) -> None:
    assert_has_weights_of(build(weights=str(published_file)), network)
    assert server.requests == 0
    assert not cache.exists()


def test_a_given_file_with_the_published_name_must_have_the_published_content(
    published_file: Path, tmp_path: Path, network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, published_file)
    other = {key: value + 1 for key, value in network.state_dict().items()}
    impostor, own = tmp_path / published_file.name, tmp_path / "own.pth"
    torch.save(other, impostor)
    with pytest.raises(ConfigError, match=r"SHA-256 should begin with.*another name"):
        build(weights=str(impostor))
    impostor.rename(own)
    key = "conv1.0.weight"
    assert torch.equal(build(weights=str(own)).state_dict()[key], network.state_dict()[key] + 1)


def test_a_run_with_other_weights_is_not_the_row(
    published_file: Path, tmp_path: Path, network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, published_file)
    same, other = tmp_path / "copy.pth", tmp_path / "own.pth"
    shutil.copy(published_file, same)
    torch.save({key: value + 0 for key, value in network.state_dict().items()}, other)
    tree: dict[str, Any] = {
        "version": 1,
        "name": "small",
        "device": "cpu",
        "task": {"name": "flair", "data": str(write_store(tmp_path / "s.h5", 64)), "crop": 64},
        "federated": {
            "num_rounds": 1,
            "cohort_size": 1,
            "local_batch_size": 16,
            "local_learning_rate": 0.01,
        },
        "expected": [
            {
                "metric": "test/loss",
                "value": 0,
                "sd": 0.0,
                "seeds": 2,
                "tolerance": 1e9,
                "source": "table 1",
            }
        ],
    }
    summaries = {}
    for path in (same, other):
        options = {"name": NAME, "init": "imagenet", "normalization": "frozen"}
        tree["model"] = {**options, "weights": str(path), "train": "head"}
        summaries[path] = run(resolve(tree, Path("row.yaml"), ()), tmp_path / path.stem)
    assert summaries[same]["expected"][0]["verdict"] == "reproduced"
    assert summaries[same]["departure"] == ""
    entry = summaries[other]["expected"][0]
    assert entry["verdict"] == "not the row"
    assert "own.pth" in entry["why"]
    assert f"is not torchvision's {published_file.name}" in entry["why"]
    assert entry["why"] in (tmp_path / "own" / "run.log").read_text()


def test_the_files_last_layer_is_not_needed(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {key: value for key, value in network.state_dict().items() if key[:3] != "fc."}
    assert_has_weights_of(build(weights=str(save(state, tmp_path))), network)
    state |= {"fc.weight": torch.zeros(17, 1_024), "fc.bias": torch.zeros(17)}
    assert_has_weights_of(build(weights=str(save(state, tmp_path))), network)


def without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "conv1.1.running_var"), r"it lacks 'conv1\.1\.running_var'"),
        (lambda s: {**s, "conv9.weight": torch.ones(2)}, r"it has 'conv9\.weight'"),
        (lambda s: {**s, "conv1.0.weight": torch.ones(8, 3, 3, 3)}, r"size mismatch.*conv1\.0"),
        (lambda s: {**s, "conv1.1.bias": torch.full((24,), float("nan"))}, "are not finite"),
        (lambda s: {"state_dict": s}, "holds no state dict"),
        (lambda s: [1, 2], "holds no state dict"),
        (lambda s: s | {"a": torch.zeros(1).expand(2**40)}, "holds no state dict"),
        (lambda s: s | {"a": torch.eye(2).to_sparse()}, "holds no state dict|cannot be read"),
        (lambda s: s | {"a": torch.empty(2, device="meta")}, "holds no state dict"),
        (lambda s: nn.Linear(2, 2), "cannot be read as a file of weights"),
    ],
)
def test_a_file_of_something_else_is_refused(
    change: object, message: str, network: nn.Module, tmp_path: Path
) -> None:
    path = save(change(network.state_dict()), tmp_path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message) as caught:
        build(weights=str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a file of torch's", b"\x80\x02]q\x00", "half"])
def test_a_damaged_file_is_refused(
    content: bytes | str, published_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pth"
    whole = published_file.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=r"weights\.pth: cannot be read as a file of weights"):
        build(weights=str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "no.pth", tmp_path):
        with pytest.raises(ConfigError, match=r"model\.weights: there is no file"):
            build(weights=str(path))


def old_densenet(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename as in the published file: ``denselayer1.norm1.weight`` was ``norm.1.weight``."""
    renamed = {}
    for key, value in state.items():
        before, layer, after = key.partition("denselayer")
        for kind in ("norm", "conv"):
            for number in "12":
                after = after.replace(f".{kind}{number}.", f".{kind}.{number}.")
        renamed[before + layer + after] = value
    assert renamed.keys() != state.keys()
    return renamed


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("densenet121", {}),
        ("googlenet", {"aux_logits": True, "init_weights": False, "transform_input": True}),
        ("mnasnet0_5", {}),
    ],
)
def test_networks_whose_published_files_differ_from_what_torchvision_builds(
    name: str, settings: dict[str, object], tmp_path: Path
) -> None:
    reference = drawn(name, **settings)
    state: dict[str, Tensor] = reference.state_dict()
    if name == "densenet121":
        state = old_densenet(state)
    # Files older than this count lack it.
    kept = OrderedDict((k, v) for k, v in state.items() if not k.endswith("num_batches_tracked"))
    if hasattr(state, "_metadata"):
        kept._metadata = state._metadata  # type: ignore[attr-defined]
    facts = DataFacts("drawn by a test", "test", "sha256:0", 1_000, (3, 64, 64), "user")
    module = build(facts, name=name, weights=str(save(kept, tmp_path, name))).eval()
    head = {"densenet121": "classifier", "googlenet": "fc", "mnasnet0_5": "classifier.1"}[name]
    module.get_submodule(head).load_state_dict(reference.get_submodule(head).state_dict())
    inputs = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(module(inputs), reference(inputs))


def test_torchvisions_files_are_known_by_name_and_digest() -> None:
    weights = pretrained.published_weights("resnet18")
    assert weights is not None
    assert weights.file_name == "resnet18-f37072fd.pth"
    assert weights.digest_prefix == pretrained.SHA256[weights.file_name]
    assert len(weights.digest_prefix) == 64
    for file_name, digest in pretrained.SHA256.items():
        assert f"-{digest[:8]}." in file_name
    names = list_models(module=torchvision.models)
    lacking = {name for name in names if pretrained.published_weights(name) is None}
    assert lacking == {"regnet_y_128gf", "vit_h_14"}


def test_networks_without_such_weights_take_a_given_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no IMAGENET1K_V1 weights of 'vit_h_14'.*weights=PATH"):
        pretrained.find_weights("vit_h_14", None)
    path = tmp_path / "own.pth"
    path.touch()
    found, departure = pretrained.find_weights("vit_h_14", str(path))
    assert found == path
    assert "compared with no digest" in departure
