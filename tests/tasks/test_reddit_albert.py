from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pfl_bench.client.engines.sequential import Options, SequentialEngine
from pfl_bench.client.factored_gradients import FactoredGradient, FactoredGradients
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import resolve
from pfl_bench.files import read_metrics
from pfl_bench.metrics.next_token import NOT_COUNTED
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, DataFacts, LocalTraining, TransformsBatches
from tasks.reddit_albert import generate, models, prepare, task
from tasks.reddit_albert.task import FIRST_WORD, HIDDEN, MASK_ID, SPECIAL, HideTokens

SMALL = {
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
LENGTH, WORDS = 64, 40


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def facts(vocabulary: int = FIRST_WORD + WORDS) -> DataFacts:
    return DataFacts("made by a test", "test", "sha256:0", vocabulary, (LENGTH,), "user")


def albert(**options: Any) -> models.HiddenTokens:
    pytest.importorskip("transformers", reason="the extra albert is not installed")
    torch.manual_seed(0)
    built = models.build(models.Options(name="albert", **(options or SMALL)), facts())
    assert isinstance(built, models.HiddenTokens)
    return built


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("albert")
    options = generate.Options(users=10, comments=200, words=WORDS)
    generate.generate(folder / "raw", options, silent)
    prepare.prepare(folder / "raw", folder / "a.h5", prepare.Options(), silent)
    return folder / "a.h5"


def open_task(store: Path, **options: Any) -> task.RedditAlbertTask:
    return task.build(task.Options(data=str(store), **options))


def blocks(count: int) -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(FIRST_WORD, FIRST_WORD + WORDS, (count, LENGTH)))


def test_tokens_are_hidden_as_often_and_as_bert_hides_them() -> None:
    hide = HideTokens(0.15, LENGTH, FIRST_WORD + WORDS)
    plain = blocks(2000)
    plain[:, :4] = torch.arange(4)
    read, told = hide(plain, hide.draw(2000, np.random.default_rng(1))).unbind(dim=2)
    hidden = told == HIDDEN
    assert not hidden[:, :4].any()
    assert torch.equal(told[~hidden], plain[~hidden])
    assert torch.equal(read[~hidden], plain[~hidden])
    # Five standard deviations of 120,000 draws, and of the 18,000 that are hidden.
    assert float(hidden[:, 4:].float().mean()) == pytest.approx(0.15, abs=0.006)
    masked = (read == MASK_ID)[hidden].float().mean()
    kept = (read == plain)[hidden].float().mean()
    assert float(masked) == pytest.approx(0.8, abs=0.02)
    # One replacement in 40 is the token itself.
    assert float(kept) == pytest.approx(0.1 + 0.1 / WORDS, abs=0.02)
    others = read[hidden & (read != MASK_ID)]
    assert FIRST_WORD <= int(others.min()) <= int(others.max()) < FIRST_WORD + WORDS


def test_training_reads_tokens_and_evaluation_the_same_hidden_ones(store: Path) -> None:
    opened = open_task(store)
    assert isinstance(opened, TransformsBatches)
    train = opened.split("train")
    plain = train.read_user(0, np.random.default_rng(0))
    assert torch.equal(plain.inputs, plain.targets)
    every = train.read_range(0, train.num_examples)
    parts = [train.read_range(at, at + 1) for at in range(train.num_examples)]
    assert torch.equal(every.inputs, torch.cat([part.inputs for part in parts]))
    assert torch.equal(every.targets, torch.cat([part.targets for part in parts]))
    assert 0.05 < float((every.targets != NOT_COUNTED).float().mean()) < 0.25
    chosen = train.read_examples(np.arange(train.num_examples), np.random.default_rng(0))
    counted = every.targets != NOT_COUNTED
    assert torch.equal(every.targets[counted], chosen.inputs[counted])
    assert len(train.read_range(0, 0)) == 0


def test_what_is_not_hidden_costs_nothing(store: Path) -> None:
    opened, model = open_task(store), albert()
    plain = blocks(3)
    draws = opened.transform.draw(3, np.random.default_rng(0))
    batch = opened.transform(plain, draws)
    read, told = batch.unbind(dim=2)
    hidden = told == HIDDEN
    with torch.no_grad():
        outputs = model(batch)
        logits = model(opened.transform(read, None))
    assert torch.equal(outputs[hidden], logits[hidden])
    expected = functional.cross_entropy(logits[hidden], plain[hidden], reduction="sum")
    losses = opened.example_losses(outputs, plain)
    assert float(losses.sum()) * 0.15 * LENGTH == pytest.approx(float(expected), rel=1e-4)
    assert float(opened.loss(outputs, plain)) == pytest.approx(float(losses.mean()))


def test_evaluation_s_loss_is_the_mean_over_hidden_tokens(store: Path) -> None:
    opened, model = open_task(store), albert()
    examples = opened.split("test").read_range(0, 2)
    with torch.no_grad():
        outputs = model(opened.transform(examples.inputs, None))
    for row in range(2):
        expected = functional.cross_entropy(outputs[row], examples.targets[row])
        measured = opened.example_losses(outputs, examples.targets)[row]
        assert float(measured) == pytest.approx(float(expected), rel=1e-5)


def test_tied_weights_are_one_parameter_with_the_whole_gradient() -> None:
    # Large enough that the output layer's gradient is kept as a product.
    model = albert(**{**SMALL, "embedding_size": 6000})
    flat = FlatModel(model, torch.device("cpu"))
    assert flat.num_parameters == sum(p.numel() for p in model.parameters())
    inputs = torch.stack([blocks(2), torch.full((2, LENGTH), HIDDEN)], dim=2)

    def gradients() -> tuple[Tensor | None, ...]:
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), blocks(2).flatten())
        return torch.autograd.grad(loss, flat.parameters, allow_unused=True)

    plain = gradients()
    products = FactoredGradients(model, flat.parameters)
    with products:
        taken = products.take(gradients())
    assert all(gradient is not None for gradient in plain)
    for before, after in zip(plain, taken, strict=True):
        dense = after.dense() if isinstance(after, FactoredGradient) else after
        assert before is not None
        assert dense is not None
        assert torch.allclose(before, dense, rtol=1e-4, atol=1e-6)
    # A step in the flat vector moves embedding and output layer alike.
    flat.vector.add_(1.0)
    embedding = model.albert.get_input_embeddings().weight
    assert embedding is model.albert.get_output_embeddings().weight


def small(store: Path, **sections: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "small",
        "seed": 0,
        "device": "cpu",
        "num_threads": 1,
        "task": {"name": "reddit_albert", "data": str(store)},
        "model": {"name": "albert", **SMALL},
        **sections,
    }


@pytest.mark.parametrize("private", [False, True])
def test_a_run_measures_perplexity(store: Path, tmp_path: Path, private: bool) -> None:
    pytest.importorskip("transformers", reason="the extra albert is not installed")
    federated = {
        "num_rounds": 2,
        "cohort_size": 4,
        "local_batch_size": 8,
        "local_learning_rate": 0.5,
    }
    evaluation = {"every": 1, "splits": ["test"], "final_splits": ["test"]}
    tree = small(store, federated=federated, evaluation=evaluation, checkpoint={"every": 2})
    if private:
        tree["privacy"] = {
            "mechanism": {"name": "gaussian", "clip_norm": 0.1},
            "population_size": 7,
            "noise_multiplier": 1.0,
        }
    summary = run(resolve(tree, Path("test.yaml"), ()), tmp_path / "run")
    metrics = summary["metrics"]
    # An even guess of 45 tokens.
    assert metrics["test/perplexity"] == pytest.approx(math.exp(metrics["test/loss"]))
    assert 20 < metrics["test/perplexity"] < 60


def test_albert_base_has_the_published_size() -> None:
    pytest.importorskip("transformers", reason="the extra albert is not installed")
    with torch.device("meta"):
        built = models.build(models.Options(name="albert"), facts(30_000))
    # albert-base-v2 with its head of masked language modelling, without the pooler.
    assert sum(p.numel() for p in built.parameters()) == 11_221_680


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'pfl-bench\[albert\]'"):
        models.build(models.Options(name="albert"), facts())


def test_weights_of_a_folder_are_loaded_or_refused(tmp_path: Path) -> None:
    source = albert()
    folder = tmp_path / "albert"
    source.albert.save_pretrained(folder)
    loaded = albert(weights=str(folder))
    state = loaded.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in source.state_dict().items())
    with pytest.raises(DataError, match="45 tokens and the data 46"):
        models.build(models.Options(name="albert", weights=str(folder)), facts(46))
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be loaded"):
        albert(weights=str(folder))
    with pytest.raises(DataError, match="nothing is downloaded"):
        albert(weights=str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="hidden_size: the sizes are those"):
        models.Options(name="albert", weights=str(folder), hidden_size=8)
    with pytest.raises(ValueError, match="not a multiple"):
        models.Options(name="albert", hidden_size=10, num_attention_heads=3)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (None, r"config\.json is not JSON .*; copy it again"),
        ({"model_type": "bert"}, r"config\.json is of a model 'bert', not 'albert'; give ALBERT's"),
        ({"intermediate_size": 48}, r"or has them in other shapes: \('albert\.encoder.*; give a"),
    ],
)
def test_a_folder_of_another_model_is_refused(
    tmp_path: Path, changes: dict[str, Any] | None, told: str
) -> None:
    albert().albert.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text("{" if changes is None else json.dumps(config | changes))
    with pytest.raises(DataError, match=told):
        albert(weights=str(tmp_path))


def test_a_loss_before_training_is_that_of_hidden_tokens(store: Path) -> None:
    opened, flat = open_task(store), FlatModel(albert(), torch.device("cpu"))
    forward, split = Forward(flat.module, opened, flat.device), opened.split("train")
    users, start, updates = np.arange(split.num_users), flat.vector.clone(), []
    for measures in (False, True):
        local = LocalTraining(1, 16, 0.3, measures_start=measures)
        engine = SequentialEngine(Options(), flat, split, forward, local, 0)
        results = [(r.update.clone(), r.start_loss) for r in engine.train(users, 1, start)]
        updates.append(torch.stack([update for update, _ in results]))
    losses = [loss for _, loss in results if loss is not None]
    assert len(losses) == split.num_users
    # An even guess of 45 tokens; were none hidden and all told, it would be near seven times that.
    assert np.mean(losses) == pytest.approx(math.log(FIRST_WORD + WORDS), rel=0.3)
    # The draws of training are its own.
    assert torch.equal(*updates)


def test_local_models_are_chosen_by_hidden_tokens(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra albert is not installed")
    rng = np.random.default_rng(0)
    texts = {name: " ".join(map(str, rng.integers(0, 20, 3000))) for name in ("ann", "bob")}
    source = write_texts(tmp_path / "raw", **texts)
    options = prepare.Options(train_fraction=0.8, val_fraction=0)
    prepare.prepare(source, tmp_path / "a.h5", options, silent)
    local = {"num_epochs": 1, "batch_size": 8, "learning_rates": [1e-6]}
    evaluation = {"every": 1, "splits": [], "final_splits": ["train"]}
    tree = small(tmp_path / "a.h5", local=local, evaluation=evaluation, checkpoint={"every": 1})
    metrics = run(resolve(tree, Path("test.yaml"), ()), tmp_path / "run")["metrics"]
    judged = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["local/train_loss"]
    # Blocks weigh the same in one, hidden tokens in the other.
    assert judged == pytest.approx(metrics["train/loss"], rel=0.05)


def write_texts(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_texts_become_full_blocks_of_the_commonest_words(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "raw", train__ann="a b a c a b a", test__bob="a z z b")
    options = prepare.Options(block_size=5, vocabulary_size=7)
    found = prepare.prepare(source, tmp_path / "a.h5", options, silent)
    assert found["counts"] == {
        "tokens": 11,
        "unknown": 3,
        "dropped_at_ends": 2,
        "clients_without_a_block": 0,
    }
    assert found["split"] == {"by": "user", "as": "published"}
    opened = open_task(tmp_path / "a.h5")
    split = opened.split("train")
    assert split.client_ids() == ["ann"]
    rows = split.read_user(0, np.random.default_rng(0)).inputs.tolist()
    # a is 5, b is 6, c is unknown.
    assert rows == [[2, 5, 6, 5, 3], [2, 1, 5, 6, 3]]


def test_texts_of_one_folder_are_split_here(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "raw", ann="a b c d e f g h", bob="a b c d")
    options = prepare.Options(block_size=3, train_fraction=0.5, val_fraction=0)
    found = prepare.prepare(source, tmp_path / "a.h5", options, silent)
    assert found["splits"]["train"] == {"users": 2, "examples": 6}


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({}, "has no text file a client"),
        ({"test__a": "x"}, "no folder train/"),
        ({"train__a": ""}, "have no word"),
        ({"train__a": "x y"}, "no client has the 62 tokens"),
    ],
)
def test_folders_without_blocks_are_told(tmp_path: Path, texts: dict[str, str], told: str) -> None:
    (tmp_path / "raw").mkdir()
    source = write_texts(tmp_path / "raw", **texts)
    with pytest.raises(DataError, match=told):
        prepare.prepare(source, tmp_path / "a.h5", prepare.Options(), silent)
    assert not (tmp_path / "a.h5").exists()


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "raw", train__a="x")
    (source / "train" / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"b\.txt: cannot be read \(not text in UTF-8"):
        prepare.prepare(source, tmp_path / "a.h5", prepare.Options(), silent)


def write_tokenizer(folder: Path, special: Sequence[str] = SPECIAL) -> Path:
    transformers = pytest.importorskip("transformers", reason="the extra albert is not installed")
    pieces = [*special, "▁a", "▁b", "c"]
    vocabulary = [(piece, -float(place)) for place, piece in enumerate(pieces)]
    transformers.AlbertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return folder


def test_albert_s_own_pieces_are_taken_from_a_folder(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer")
    pieces = prepare.Pieces(folder)
    assert pieces.vocabulary[5:] == ["▁a", "▁b", "c"]
    assert pieces("A b bc") == [5, 6, 6, 7]
    source = write_texts(tmp_path / "raw", train__ann="a b a b bc")
    options = prepare.Options(block_size=4, tokenizer=str(folder))
    found = prepare.prepare(source, tmp_path / "a.h5", options, silent)
    assert found["vocabulary_size"] == 8
    assert found["splits"]["train"]["examples"] == 3
    with pytest.raises(ConfigError, match="vocabulary_size: is for the commonest words"):
        prepare.prepare(
            source,
            tmp_path / "b.h5",
            prepare.Options(tokenizer=str(folder), vocabulary_size=8),
            silent,
        )


def test_tokenizers_that_are_missing_or_damaged_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing is downloaded"):
        prepare.Pieces(tmp_path)
    folder = write_tokenizer(tmp_path / "tokenizer")
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be loaded"):
        prepare.Pieces(folder)


def test_tokenizers_of_other_or_too_many_tokens_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tokenizer(tmp_path / "other", SPECIAL[::-1])
    with pytest.raises(DataError, match=r"first tokens are \[MASK\], .* of 8, but ALBERT's are"):
        prepare.Pieces(other)
    monkeypatch.setattr(prepare, "MOST_TOKENS", 7)
    options = prepare.Options(tokenizer=str(write_tokenizer(tmp_path / "large")))
    source = write_texts(tmp_path / "raw", train__ann="a b")
    with pytest.raises(DataError, match=r"large: 8 tokens, and the store has room for .* of 7;"):
        prepare.prepare(source, tmp_path / "a.h5", options, silent)


def test_iid_deals_the_training_blocks(store: Path) -> None:
    opened = open_task(store, partition="iid")
    sizes = np.diff(opened.split("train").offsets)
    assert sizes.max() - sizes.min() <= 1
    assert opened.facts.variant == "generated-iid"
    assert opened.facts.artificial_users
