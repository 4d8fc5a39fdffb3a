"""One independent random stream per (seed, purpose, round, client).

Every draw of a run comes from a stream that is named by what it is for, never from a generator
that something else has advanced. So a result does not depend on the order of clients, on the
number of workers, or on whether the run was resumed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """Purposes of streams. The values are part of the format of a run: never renumber them."""

    MODEL_INIT = 1
    SAMPLING = 2
    LOCAL_TRAINING = 3
    NOISE = 4
    CENTRAL_BATCHES = 5
    AUGMENTATION = 6
    CENTRAL_MODEL = 7
    PERSONAL = 8
    CLIENT_NOISE = 9
    CANARIES = 10
    PROBE = 11
    COMPRESSION = 12
    DEVICES = 14
    ATTACK = 15
    STATISTICS = 16
    SHADOW = 17
    TRIALS = 18


def _sequence(seed: int, purpose: Purpose, round_index: int, client: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), round_index, client))


def stream(
    seed: int, purpose: Purpose, round_index: int = 0, client: int = 0
) -> np.random.Generator:
    """Open a stream; the round is 1-based, 0 for what happens once a run.

    ``client`` is the index of a user in the training split, 0 where no client is meant.

    The bit generator is Philox, counter-based with a 128-bit key drawn from all parts of the name,
    so that two names give two streams. (torch's CPU generator keeps only 32 bits of a seed: among
    100,000 rounds two would share their noise with probability near 0.7.)
    """
    return np.random.Generator(np.random.Philox(_sequence(seed, purpose, round_index, client)))


def torch_seed(seed: int, purpose: Purpose, round_index: int = 0, client: int = 0) -> int:
    """Derive a 64-bit seed for torch's generators.

    torch's CPU generator uses its lower 32 bits. For dropout and weight initialisation a rare
    collision harms nothing; noise that is drawn round by round must come from ``stream``. (Opacus
    needs a torch generator: it is seeded once a run, so only whole runs could collide.)
    """
    state = _sequence(seed, purpose, round_index, client).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def seed_torch(
    seed: int, purpose: Purpose, device: torch.device, round_index: int = 0, client: int = 0
) -> None:
    """Seed the generator that dropout and initialisers on ``device`` draw from.

    ``torch.manual_seed`` would seed every device that could exist, at the cost of a small training
    step for each client.
    """
    value = torch_seed(seed, purpose, round_index, client)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)
