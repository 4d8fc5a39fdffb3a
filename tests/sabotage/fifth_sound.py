"""The fifth list: sound runs, which must pass."""

from __future__ import annotations

from tests.sabotage.fifth_planting import (
    ADAPTIVE,
    BANDED,
    CENTRAL_DP,
    EPOCHS,
    FEDERATED,
    GAUSSIAN,
    PLD,
    PRIVUNIT,
    RESTARTED_TREE,
    FifthBug,
    Patch,
    Plant,
    Settings,
    change_noise,
    gaussian_with,
)
from tests.sabotage.planting import nothing


def _noise_in_one_piece(patch: Patch) -> None:
    change_noise(patch, lambda noise, _: noise)


def _sound(
    name: str,
    description: str,
    settings: Settings = GAUSSIAN,
    config: str = FEDERATED,
    plant: Plant = nothing,
    killed_after: int | None = None,
) -> FifthBug:
    return FifthBug(f"sound_{name}", description, plant, settings, config, killed_after, sound=True)


SOUND: tuple[FifthBug, ...] = (
    _sound("plain", "The row as it is.", ADAPTIVE),
    _sound("resumed", "Killed and resumed.", killed_after=6),
    _sound("workers", "Two workers.", (*ADAPTIVE, "federated.workers=2")),
    _sound(
        "topk_prox_adam",
        "Compression, FedProx, Adam, a schedule and local momentum.",
        gaussian_with(
            "federated.compression={name: top_k, fraction: 0.1}",
            "federated.algorithm={name: fedprox, proximal_weight: 0.1}",
            "federated.central_optimizer={name: adam, epsilon: 0.01}",
            "federated.central_learning_rate=0.1",
            "federated.central_schedule={warmup: 3, decay: cosine}",
            "federated.local_momentum=0.5",
        ),
    ),
    _sound(
        "canaries_best",
        "Canaries, the best model, and an evaluation in each round.",
        gaussian_with(
            "privacy.audit={kind: one_run, count: 100}",
            "evaluation.select_best=val/accuracy",
            "evaluation.every=1",
        ),
    ),
    _sound(
        "noise_pieces_refactor",
        "Noise that is drawn in one piece and in float64, and added as before.",
        plant=_noise_in_one_piece,
    ),
    _sound(
        "vectorized_bf16",
        "The vectorized engine, in bfloat16.",
        gaussian_with("federated.engine=vectorized", "precision=bfloat16"),
    ),
    _sound(
        "dpsgd_shuffled_micro",
        "DP-SGD, shuffled and accounted so, in micro-batches of 16, with momentum.",
        (
            *EPOCHS,
            "central.sampling=shuffled",
            "central.physical_batch_size=16",
            "central.optimizer={name: sgd, momentum: 0.5}",
        ),
        CENTRAL_DP,
    ),
    _sound("banded_cyclic", "Banded noise under cyclic Poisson sampling.", BANDED),
    _sound(
        "tree_restart",
        "A tree that restarts, killed and resumed.",
        RESTARTED_TREE,
        killed_after=6,
    ),
    _sound("privunit_workers", "PrivUnit, two workers.", (*PRIVUNIT, "federated.workers=2")),
    _sound(
        "fixed_pld",
        "Cohorts of a fixed size, accounted by PLD.",
        gaussian_with("federated.sampling=fixed_size", PLD),
    ),
)
