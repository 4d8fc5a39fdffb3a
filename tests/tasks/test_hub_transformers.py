"""Texts by tokenizers and classifiers of transformers, as files that are written here."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.config.loading import resolve, validate_options
from pfl_bench.federated.private_seed import derive
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, DataFacts
from tasks.hub import models, prepare, task
from tests.helpers import central_of
from tests.tasks.femnist_files import silent
from tests.tasks.test_hub import write

transformers = pytest.importorskip("transformers", reason="the extra transformers is missing")

WIDTH, PADDING = 8, 4
SMALL = {
    "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": WIDTH,
    "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
}  # fmt: skip
ROW = {"name": "transformers", "architecture": "distilbert", "settings": SMALL}
TEXTS = ["good film", "bad film", "good good good good good good good good", "", "unheard bad"]


def write_tokenizer(folder: Path, **tokens: str) -> Path:
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import WordLevel

    words = ["good", "bad", "film", "[UNK]", "[PAD]", "[CLS]", "[SEP]"]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, numbers[word]) for word in words[5:]]
    )
    tokens = tokens or {"pad_token": "[PAD]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)
    fast.save_pretrained(folder)
    return folder


def prepared(folder: Path, *given: str, empty: str = "") -> dict[str, Any]:
    texts = [text or empty for text in TEXTS]
    columns = {"x": texts * 12, "y": [1, 0, 1, 0, 0] * 12, "u": list("abcdefghij") * 6}
    write(folder / "raw/train.parquet", **columns)
    options = ["input=x", "label=y", "user=u", "split_by=example", *given]
    return prepare.prepare(
        folder / "raw",
        folder / "my.h5",
        validate_options(prepare.Options, options, "test"),
        silent,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("texts")
    tokenizer = write_tokenizer(found / "tokenizer")
    prepared(found, f"tokenizer={tokenizer}", f"max_words={WIDTH}")
    return found


def opened(folder: Path) -> Any:
    return task.build(task.Options(data=str(folder / "my.h5")))


def built(facts: DataFacts, **options: Any) -> Any:
    torch.manual_seed(0)
    return models.build(models.Options.model_validate(options or ROW), facts)


def test_texts_become_the_tokenizer_s_tokens(folder: Path) -> None:
    facts = opened(folder).facts
    words = facts.extra["vocabulary"]
    assert words.pop("files").startswith("sha256:")
    assert words == {
        "from": "tokenizer",
        "tokenizer": "tokenizer",
        "size": 7,
        "pad_id": PADDING,
    }
    train = opened(folder).split("train")
    rows = {tuple(row) for row in train.read_range(0, train.num_examples).inputs.tolist()}
    assert rows == {
        (5, 0, 2, 6, *[PADDING] * 4),
        (5, 1, 2, 6, *[PADDING] * 4),
        (5, *[0] * 6, 6),
        (5, 6, *[PADDING] * 6),
        (5, 3, 1, 6, *[PADDING] * 4),
    }


def test_padding_is_not_read(folder: Path) -> None:
    module = built(opened(folder).facts).eval()
    short = torch.tensor([[5, 0, 2, 6]])
    long = torch.cat([short, torch.full((1, 4), PADDING)], dim=1)
    alone = module(short)
    assert torch.allclose(module(long), alone, atol=1e-6)
    assert module(torch.full((2, WIDTH), PADDING)).isfinite().all()
    assert alone.shape == (1, 2)


def test_examples_have_gradients_of_their_own(folder: Path) -> None:
    from opacus import GradSampleModule

    made = opened(folder)
    module = built(made.facts)
    texts = made.split("train").read_range(0, 5).inputs
    targets = torch.tensor([0, 1, 1, 0, 1])
    alone = []
    for row in range(5):
        loss = functional.cross_entropy(module(texts[row : row + 1]), targets[row : row + 1])
        alone.append(torch.autograd.grad(loss, list(module.parameters())))
    sampled = GradSampleModule(module, loss_reduction="sum")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        functional.cross_entropy(sampled(texts), targets, reduction="sum").backward()
    for parameter, *own in zip(module.parameters(), *alone, strict=True):
        assert torch.allclose(parameter.grad_sample, torch.stack(own), atol=1e-6)
    sampled.remove_hooks()


def test_embedded_pairs_of_positions_are_refused(folder: Path) -> None:
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    given = {**ROW, "architecture": "mpnet", "settings": settings}
    with pytest.raises(ConfigError, match="mpnet cannot be used: it embeds pairs of positions"):
        built(opened(folder).facts, **given)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "gpt2"])
def test_other_architectures_read_the_same_texts(architecture: str, folder: Path) -> None:
    settings = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 16,
    }  # fmt: skip
    module = built(
        opened(folder).facts, name="transformers", architecture=architecture, settings=settings
    )
    assert module(torch.randint(0, 7, (3, WIDTH))).shape == (3, 2)


def tree(folder: Path, **federated: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "small",
        "device": "cpu",
        "task": {"name": "hub", "data": str(folder / "my.h5")},
        "model": ROW,
        "federated": {
            "num_rounds": 2,
            "cohort_size": 5,
            "local_batch_size": 4,
            "local_learning_rate": 0.1,
            **federated,
        },
        "privacy": {
            "mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "population_size": 10,
            "noise_multiplier": 1.0,
            "nonce": "tests",
        },
        "evaluation": {"every": 1, "splits": ["val"]},
        "checkpoint": {"every": 1},
    }


def ran(given: dict[str, Any], out: Path, **options: Any) -> Tensor:
    run(resolve(given, Path("test.yaml"), ()), out, **options)
    return central_of(out)


def test_a_private_run_is_audited_resumed_and_the_same_in_slots(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "plain"
    plain = ran(tree(folder), out)
    assert not [check for check in audit_run(out, 1).checks if check.outcome == "failed"]
    # Killed after round 1.
    (out / "summary.json").unlink()
    (out / "checkpoints/step-00000002.pt").unlink()
    assert torch.equal(ran(tree(folder), out, resume=True), plain)
    slots = {"engine": "vectorized", "engine_lanes": 3}
    assert torch.allclose(ran(tree(folder, **slots), tmp_path / "slots"), plain, atol=1e-5)


def test_slots_refuse_layers_that_they_do_not_know(folder: Path, tmp_path: Path) -> None:
    given = tree(folder, engine="vectorized", engine_lanes=3)
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    given["model"] = {**ROW, "architecture": "gpt2", "settings": settings}
    with pytest.raises(ConfigError, match=r"cannot be trained by the vectorized.*Conv1D"):
        ran(given, tmp_path / "run")


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("distilbert", SMALL),
        ("opt", {"word_embed_proj_dim": 16, "ffn_dim": 16}),
        ("modernbert", {"intermediate_size": 16, "bos_token_id": 5, "eos_token_id": 6}),
    ],
)
def test_example_level_privacy_trains_or_says_what_opacus_lacks(
    architecture: str, settings: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    if architecture != "distilbert":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        settings = {**settings, **sizes}
    given = tree(folder)
    del given["federated"], given["privacy"]["population_size"]
    given["central"] = {"num_epochs": 2, "batch_size": 8, "learning_rate": 0.1}
    given["model"] = {**ROW, "architecture": architecture, "settings": settings}
    if architecture == "distilbert":
        assert ran(given, tmp_path / "run").isfinite().all()
        return
    with pytest.raises(ConfigError, match="Opacus cannot compute gradients of single examples"):
        ran(given, tmp_path / "run")


def seed_of(given: dict[str, Any], facts: DataFacts) -> int:
    given["privacy"].pop("nonce", None)
    resolved = resolve(given, Path("test.yaml"), ())
    torch.manual_seed(0)
    module = models.build(models.Options.model_validate(given["model"]), facts)
    model = FlatModel(module, torch.device("cpu"))
    return derive(resolved, facts.checksum, model.initial_digest, model.device).value


def test_weights_of_a_folder_keep_the_body_and_get_a_new_head(folder: Path, tmp_path: Path) -> None:
    facts = opened(folder).facts
    for classes in (2, 3):
        place = tmp_path / str(classes)
        torch.manual_seed(1)
        source = models.build(models.Options(**ROW), replace(facts, num_classes=classes))
        source.network.save_pretrained(place)
        loaded = built(facts, name="transformers", weights=str(place))
        before = source.network.state_dict()
        assert loaded.training
        for name, value in loaded.network.state_dict().items():
            if name.startswith("distilbert."):
                assert torch.equal(value, before[name])
        assert not torch.equal(
            loaded.network.pre_classifier.weight, before["pre_classifier.weight"]
        )
        assert loaded.network.classifier.weight.shape == (2, 16)
    given = {**tree(folder), "model": {"name": "transformers", "weights": str(place)}}
    seed = seed_of(given, facts)
    assert seed_of(given, facts) == seed
    other = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**other, "activation": "relu"}))
    assert seed_of(given, facts) != seed
    # A number that pads, and another that does: other releases of the same weights.
    words = {**facts.extra["vocabulary"], "pad_id": 3}
    assert seed_of(tree(folder), facts) != seed_of(
        tree(folder), replace(facts, extra={**facts.extra, "vocabulary": words})
    )
    (place / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"model.weights: .* cannot be used: "):
        built(facts, name="transformers", weights=str(place))
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"pickled weights, pytorch_model.bin, are not read"):
        built(facts, name="transformers", weights=str(place))


def test_weights_that_lack_a_layer_are_refused(folder: Path, tmp_path: Path) -> None:
    facts = opened(folder).facts
    built(facts).network.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_layers": 2}))
    with pytest.raises(DataError, match=r"lacks weights of the model .*layer\.1"):
        built(facts, name="transformers", weights=str(tmp_path))


def test_code_in_a_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    facts = opened(folder).facts
    built(facts).network.save_pretrained(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemExit('was run')")
    names = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
    config = {"model_type": "own", "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"model.weights: .*custom code"):
        built(facts, name="transformers", weights=str(tmp_path))
    write_tokenizer(tmp_path)
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Tokenizer"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"tokenizer=.*custom code"):
        prepared(tmp_path, f"tokenizer={tmp_path}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "distilbrt"}, "architecture: distilbrt cannot be used: Unrecognized"),
        (
            {"settings": {"n_layer": 2}},
            "n_layer is none that a row sets of distilbert; did you mean 'n_layers'",
        ),
        ({"settings": {"num_labels": 5}}, "num_labels is none that a row sets"),
        ({"settings": {"dim": "wide"}}, "distilbert cannot be used: .*dim"),
        ({"settings": {"dim": 9, "n_heads": 2}}, "cannot be used.* 2 must divide .* 9"),
        (
            {"settings": {**SMALL, "vocab_size": 6}},
            "cannot be used: index out of range.*8 tokens of 7",
        ),
        (
            {"settings": {**SMALL, "max_position_embeddings": 7}},
            r"cannot be used: .*\(8\) must match .*\(7\)",
        ),
        (
            {"architecture": "vit", "settings": {}},
            "model.architecture: vit cannot be used: Unrecognized configuration class",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        built(opened(folder).facts, **{**ROW, **changes})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "transformers"}, "such as distilbert, or else weights"),
        ({**ROW, "settings": {}, "weights": "folder"}, "or else weights"),
        ({"name": "transformers", "weights": "a", "settings": SMALL}, "settings: of name: transf"),
        ({"name": "bag_log_reg", "weights": "folder"}, "no other has any"),
        ({"name": "timm"}, "timm needs one, such as resnet18"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.Options.model_validate(options)


def test_data_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'stacked_lstm' does not take the text .*: transformers"
    ):
        built(opened(folder).facts, name="stacked_lstm")
    with pytest.raises(DataError, match="row 4, column 'x': has no word"):
        prepared(tmp_path, "max_words=8", "buckets=50")
    prepared(tmp_path, "max_words=8", "buckets=50", empty="film")
    hashed = opened(tmp_path).facts
    assert built(hashed)(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 2)
    built(hashed).network.save_pretrained(tmp_path / "weights")
    with pytest.raises(DataError, match=r"prepared by its tokenizer \(they are of hashes"):
        built(hashed, name="transformers", weights=str(tmp_path / "weights"))
    write(tmp_path / "raw/train.parquet", x=[[1.0, 2.0]] * 9, y=[0, 1, 2] * 3)
    given = ["input=x", "label=y", f"tokenizer={folder / 'tokenizer'}"]
    options = validate_options(prepare.Options, given, "test")
    with pytest.raises(ConfigError, match="tokenizer: of text, not of vectors"):
        prepare.prepare(tmp_path / "raw", tmp_path / "my.h5", options, silent)
    options = validate_options(prepare.Options, given[:2], "test")
    prepare.prepare(tmp_path / "raw", tmp_path / "my.h5", options, silent)
    with pytest.raises(ConfigError, match="'transformers' does not take the vectors"):
        built(opened(tmp_path).facts)


def test_tokenizers_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nobody/nothing", str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(DataError, match=r"cannot be loaded .*nothing is downloaded"):
            prepared(tmp_path, f"tokenizer={name}")
    place = write_tokenizer(tmp_path / "tokenizer", unk_token="[UNK]")
    with pytest.raises(DataError, match="has no padding; set pad_token"):
        prepared(tmp_path, f"tokenizer={place}")
    write_tokenizer(place)
    with pytest.raises(ConfigError, match="max_words: 2, but the tokenizer alone adds 2 tokens"):
        prepared(tmp_path, f"tokenizer={place}", "max_words=2")
    with pytest.raises(ConfigError, match="in place of buckets"):
        prepared(tmp_path, f"tokenizer={place}", "buckets=9")
    (place / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be loaded"):
        prepared(tmp_path, f"tokenizer={place}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'pfl-bench\[transformers\]'"):
        prepared(tmp_path, f"tokenizer={place}")
