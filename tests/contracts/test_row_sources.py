"""Rows have the settings that they say are their source's, and the epsilons that follow from them.

Sources: apple/pfl-research, benchmarks/lm/configs/baseline.yaml, benchmarks/lm/pytorch/train.py and
benchmarks/utils/argument_parsing.py (the recipes); WwZzz/FLGo-Bench, README.md and get_run_res.py,
whose deviations are numpy's, with ddof 0.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.config.row_files import DIFFERENCES_NAME
from tests.contracts.small_rows import CONFIGS

CENTRAL_SIZES = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}
SUMS = sorted((CONFIGS / "fedscale" / "figure13").glob("*-sum.yaml"))
DP_SGD = sorted((CONFIGS / "dp_sgd").glob("*/*_*.yaml"))


def header(row: Path) -> str:
    """The comment at a row's head, as one line."""
    lines = row.read_text(encoding="utf-8").splitlines()
    return " ".join(line[1:].strip() for line in lines if line.startswith("#"))


def check_stated(stated: str, epsilon: float) -> None:
    """A stated epsilon is the true one, rounded up in its last place."""
    unit = 10.0 ** -len(stated.partition(".")[2])
    assert 0 <= float(stated.replace(",", "")) - epsilon < unit


@pytest.mark.parametrize("name", ["nonprivate", "private"])
def test_reddit_has_the_recipe_of_stackoverflow(name: str) -> None:
    options = load_config(CONFIGS / "reddit" / f"{name}.yaml").config.federated
    assert options is not None
    assert (options.num_rounds, options.cohort_size) == (2000, 400)
    assert (options.local_epochs, options.local_batch_size) == (1, 16)
    assert (options.local_learning_rate, options.central_learning_rate) == (0.3, 0.1)
    central = options.central_optimizer
    assert (central.name, central.beta1, central.beta2, central.epsilon) == (
        "adam",
        0.9,
        0.99,
        0.01,
    )
    assert (options.central_schedule.warmup, options.central_schedule.decay) == (50, "constant")


def test_femnist_has_the_noise_of_its_recipe() -> None:
    tree = load_config(CONFIGS / "femnist" / "pfl_recipe" / "private_federated.yaml").tree
    privacy = tree["privacy"]
    # The recipe calibrates by privacy loss distributions; by Renyi divergences it is a sixth more.
    assert privacy["accountant"] == "pld"
    assert (privacy["epsilon"], privacy["delta"], privacy["population_size"]) == (2.0, 1e-6, 10**6)
    assert (privacy["mechanism"]["clip_norm"], privacy["noise_cohort_size"]) == (0.4, 1000)


@pytest.mark.parametrize(
    ("algorithm", "mean", "deviation"),
    [("fedavg", 99.20, 0.00), ("scaffold", 99.11, 0.02), ("feddyn", 99.37, 0.01)],
)
def test_deviations_of_flgo_bench_are_samples(
    algorithm: str, mean: float, deviation: float
) -> None:
    config = load_config(CONFIGS / "flgo_bench" / f"mnist-iid-{algorithm}.yaml").config
    (expected,) = config.expected
    assert expected.value == pytest.approx(mean / 100)
    assert expected.seeds == 5
    assert expected.sd == pytest.approx(deviation / 100 * math.sqrt(5 / 4), abs=1e-6)


@pytest.mark.parametrize("row", SUMS, ids=lambda row: row.stem)
def test_an_epsilon_of_figure_13_is_that_of_its_row(
    row: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = load_config(row).tree
    arguments = {
        "noise-multiplier": tree["privacy"]["noise_multiplier"],
        "population": 10_000,
        "cohort": tree["federated"]["cohort_size"],
        "rounds": tree["federated"]["num_rounds"],
    }
    command = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
    assert main(["privacy", "epsilon", "--json", *command]) == 0
    found = re.search(r"has epsilon ([\d,.]+) for 10,000 clients", header(row))
    assert found is not None
    check_stated(found.group(1), json.loads(capsys.readouterr().out)["epsilon"])


def poisson_epsilon(tree: dict[str, Any]) -> float:
    """By dp-accounting itself: the steps of a row as Poisson samples, and its statistics."""
    size, central, privacy = CENTRAL_SIZES[tree["task"]["name"]], tree["central"], tree["privacy"]
    batch = central["batch_size"]
    # The sources drop the last batch; Poisson samples drop nothing.
    steps = size // batch if central["sampling"] == "shuffled" else -(-size // batch)
    accountant = PLDAccountant()
    step = dp_accounting.GaussianDpEvent(privacy["noise_multiplier"])
    sampled = dp_accounting.PoissonSampledDpEvent(batch / size, step)
    accountant.compose(sampled, steps * central["num_epochs"])
    if privacy["statistics"] is not None:
        released = dp_accounting.GaussianDpEvent(privacy["statistics"]["noise_multiplier"])
        accountant.compose(released, 2)
    return float(accountant.get_epsilon(privacy["delta"]))


@pytest.mark.parametrize(
    "row", [row for row in DP_SGD if row.name != DIFFERENCES_NAME], ids=lambda row: row.stem
)
def test_an_epsilon_of_dp_sgd_is_that_of_its_row(row: Path) -> None:
    found = re.search(r"(?:Epsilon is|it would be|by pld it is) ([\d.]*\d)", header(row))
    assert found is not None
    check_stated(found.group(1), poisson_epsilon(load_config(row).tree))


@pytest.mark.parametrize(
    ("pattern", "number", "said"),
    [
        ("flair/table[13]/central_*.yaml", 6, "there a buffer of 10,000 passes over the users"),
        ("dp_sgd/handcrafted/*cnn_*.yaml", 12, "ends a run after 20 epochs without a better"),
        ("leaf/figure3/femnist-*.yaml", 6, "(the script: 90 %)"),
        ("leaf/figure3/sent140-k?0*.yaml", 3, "(commit 9792a12, baseline/): accuracy 0."),
        ("dp_sgd/opacus/epsilon_*.yaml", 3, "its README (0698adf) has the same accuracy"),
        ("dp_sgd/handcrafted/mnist_scattering_cnn_*.yaml", 2, "the published run may have had 25"),
        ("fedscale/table4/speech-*.yaml", 4, "for speech has a rate of 0.05, and 30 local steps"),
        ("fedscale/figure14/label_flip*.yaml", 3, "malicious_factor 4, one of four"),
        ("flgo_bench/mnist-*.yaml", 3, "ends a run after 250 rounds without a better one"),
    ],
)
def test_rows_say_what_their_source_does_otherwise(pattern: str, number: int, said: str) -> None:
    rows = sorted(CONFIGS.glob(pattern))
    assert len(rows) == number
    assert [row for row in rows if said not in header(row)] == []


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedyogi", "iid"])
def test_amazon_has_the_vectors_that_fedscales_code_takes(algorithm: str) -> None:
    # fedscale/cloud/config_parser.py, embedding_file.
    tree = load_config(CONFIGS / "fedscale" / "table4" / f"amazon-{algorithm}.yaml").tree
    assert tree["model"]["embeddings"] == "glove.840B.300d.txt"
