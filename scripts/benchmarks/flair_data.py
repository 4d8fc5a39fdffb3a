"""Inputs of the FLAIR benchmark: generated pictures, weights, and the file that ``pfl`` reads."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch

from tasks.flair import generate, prepare, task

# FLAIR's published mean.
IMAGES_A_USER = 8.4


def make_store(folder: Path, num_users: int, seed: int) -> Path:
    """Draw a mini FLAIR of JPEGs and prepare it, as a user would.

    Args:
        folder: Where everything is written.
        num_users: Users, eight tenths of them for training; images a user are FLAIR's skew.
        seed: Seed of all that is drawn.
    """
    raw, store = folder / "raw", folder / "flair.h5"
    size = {"num_users": num_users, "num_images": round(IMAGES_A_USER * num_users)}
    generate.generate(raw, generate.Options(**size, seed=seed), lambda *_: None)
    prepare.prepare(raw, store, prepare.Options(), lambda *_: None)
    return store


def make_weights(path: Path, seed: int) -> Path:
    """Write weights in torchvision's form: random, with statistics that fit them.

    Args:
        path: File to write.
        seed: Seed of the weights.
    """
    from torchvision.models import resnet18

    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = resnet18()
    with torch.no_grad():
        # Frozen statistics that fit nothing would let activations grow from block to block.
        for layer in module.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.momentum = None
        module.train()(torch.randn(8, 3, 224, 224, generator=generator))
    torch.save(module.state_dict(), path)
    return path


def write_pfl_file(path: Path, store: Path) -> Path:
    """Write the training users as pfl-research's FLAIR recipe stores them: pixels, a group a user.

    Args:
        path: HDF5 file to write.
        store: The store that the other sides read.

    Source: apple/pfl-research, benchmarks/dataset/flair/prepare_dataset.py.
    """
    split = task.build(task.Options(data=str(store), decode="cpu")).split("train")
    with h5py.File(path, "w") as file:
        for user in range(split.num_users):
            examples = split.read_range(int(split.offsets[user]), int(split.offsets[user + 1]))
            group = file.create_group(f"train/{user}")
            group["images"] = examples.inputs.permute(0, 2, 3, 1).contiguous().numpy()
            rows, columns = examples.targets.nonzero(as_tuple=True)
            group["labels_row"] = rows.numpy().astype(np.uint16)
            group["labels_col"] = columns.numpy().astype(np.uint8)
    return path
