"""Every row under configs/, cut down to one round on a dozen users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_bench.config.row_files import kind_of
from tests.contracts.small_stores import (
    FLAIR_USERS,
    LEAF_USERS,
    write_amazon_review,
    write_celeba,
    write_cifar10,
    write_fashion_mnist,
    write_femnist,
    write_flair,
    write_google_speech,
    write_mnist,
    write_openimage,
    write_reddit,
    write_reddit_albert,
    write_scattering,
    write_sent140,
    write_shakespeare,
)
from tests.helpers import REPOSITORY

CONFIGS = REPOSITORY / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
ROWS = [path for path in FILES if kind_of(path) == "row"]
DIGITS_USERS = 300
SMALL_SIDE = 32
SLOW = frozenset({"flair", "google_speech", "openimage", "shakespeare"})
LARGE = ("mcmahan_cnn", "mobilenet", "resnet", "shufflenet")
IMAGES = frozenset({"cifar10", "fashion_mnist", "mnist"})
STORES = {
    "amazon_review": write_amazon_review,
    "celeba": write_celeba,
    "cifar10": write_cifar10,
    "fashion_mnist": write_fashion_mnist,
    "femnist": write_femnist,
    "flair": write_flair,
    "google_speech": write_google_speech,
    "mnist": write_mnist,
    "openimage": write_openimage,
    "reddit": write_reddit,
    "reddit_albert": write_reddit_albert,
    "sent140": write_sent140,
    "shakespeare": write_shakespeare,
}


def write_small_files(folder: Path) -> dict[str, Path]:
    """Small stores by task; "weights", random ones for ResNet-18; "words", vectors of two."""
    from torchvision.models import resnet18

    files = {name: folder / f"{name}.h5" for name in STORES}
    for name, write in STORES.items():
        write(files[name])
    for name in IMAGES:
        files[f"{name}, scattering"] = folder / f"{name}-scattering.h5"
        write_scattering(files[f"{name}, scattering"], name)
    torch.manual_seed(0)
    files["weights"] = folder / "random-resnet18.pth"
    torch.save(resnet18(weights=None).state_dict(), files["weights"])
    files["words"] = folder / "vectors.txt"
    files["words"].write_text("a 1.0 2.0\naa 2.0 1.0\n", encoding="utf-8")
    return files


def shortened(tree: dict[str, Any], small: dict[str, Path]) -> list[str]:
    """Overrides that make the row of ``tree`` one round long and fit for a dozen users."""
    overrides = ["device=cpu", "evaluation.every=1"]
    task, users = tree["task"], DIGITS_USERS
    if task["name"] in small:
        features = ", scattering" if tree["model"]["name"].startswith("scatter_") else ""
        overrides.append(f"task.data={small[task['name'] + features]}")
        users = FLAIR_USERS["train"] if task["name"] == "flair" else LEAF_USERS
    if task.get("partition") and task["name"] in IMAGES:
        users = task["partition"].get("num_clients", users)
    if task.get("splits") == "writers":
        users -= sum(round(task[f"{split}_fraction"] * users) for split in ("val", "test"))
    cohort = users
    if task["name"] == "synthetic":
        users = cohort = LEAF_USERS
        overrides.append(f"task.num_tasks={users}")
    if task["name"] == "flair":
        crop = min(task["crop"], SMALL_SIDE)
        overrides += [f"task.resize={SMALL_SIDE}", f"task.crop={crop}"]
        if tree["model"]["init"] == "imagenet":
            overrides.append(f"model.weights={small['weights']}")
    if task["name"] in ("celeba", "openimage"):
        overrides.append(f"task.size={SMALL_SIDE}")
    if tree["model"].get("embeddings") is not None:
        overrides.append(f"model.embeddings={small['words']}")
    if task["name"] == "reddit_albert":
        pytest.importorskip("transformers", reason="the extra albert is not installed")
        overrides += ["model.hidden_size=24", "model.num_hidden_layers=2"]
        overrides += ["model.num_attention_heads=2", "model.intermediate_size=32"]
    if tree["systems"] is not None:
        overrides.append("systems.source={name: generated}")
    if task["name"] in SLOW or tree["model"]["name"].startswith(LARGE):
        # Two clients of a large model show what twelve do, in a sixth of the time.
        cohort = 2
    return [*overrides, *_trained_once(tree, users, cohort)]


def _trained_once(tree: dict[str, Any], users: int, cohort: int) -> list[str]:
    """Overrides of whichever section trains."""
    if tree["central"] is not None:
        return ["central.num_epochs=1", "central.batch_size=16"]
    if tree["local"] is not None:
        return ["local.num_epochs=1", "local.num_clients=2"]
    if tree["multitask"] is not None:
        return ["multitask.num_rounds=1", "multitask.num_clients=4"]
    federated = tree["federated"]
    cohort = min(federated["cohort_size"], cohort)
    overrides = ["federated.num_rounds=1", f"federated.cohort_size={cohort}"]
    if federated["local_epochs"] > 2:
        overrides.append("federated.local_epochs=2")
    if (federated["local_steps"] or 0) > 2:
        overrides.append("federated.local_steps=2")
    if tree["evaluation"]["adaptation"] is not None:
        overrides.append("evaluation.adaptation.num_steps=2")
    privacy = tree["privacy"]
    if federated["sampling"] == "full":
        cohort = users
        overrides.append(f"federated.cohort_size={users}")
    elif federated["separation"] > 1:
        cohort = users // 2
        overrides += [f"federated.cohort_size={cohort}", "federated.separation=2"]
    if privacy is not None and "bands" in privacy["mechanism"]:
        overrides += ["federated.num_rounds=2", "privacy.mechanism.bands=2"]
    if privacy is not None and not privacy["hypothetical_population"]:
        overrides.append(f"privacy.population_size={users}")
        noise_cohort = min(privacy["noise_cohort_size"] or cohort, users)
        overrides.append(f"privacy.noise_cohort_size={noise_cohort}")
        if users != DIGITS_USERS:
            # A dozen users cannot hide a count; one round of so few needs no small epsilon either.
            given = privacy["noise_multiplier"] is not None
            overrides.append("privacy.noise_multiplier=1.0" if given else "privacy.epsilon=100.0")
    return overrides
