"""The random streams of a run, from their definition.

A stream has a name of four numbers: a seed, a purpose, a round (from 1; 0 for what is drawn once a
run) and a client (index of the user in the training split; 0 where none is meant). Its bits are
those of Philox 4x64-10 with the key that numpy's ``SeedSequence`` hashes from the seed as entropy
and (purpose, round, client) as spawn key. Numbers are drawn from the bits by ``numpy.random``.
The run's own seed is for what clients do, the private one (256 bits) for all else.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox); O'Neill 2015
(seed sequences).
"""

from __future__ import annotations

import numpy as np

# Of the private seed, and of the run's own.
COHORT, NOISE, CLIENT_NOISE, CANARIES = 2, 4, 9, 10
LOCAL_TRAINING, AUGMENTATION, DEVICES = 3, 6, 14


def _key(seed: int, *name: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed, spawn_key=name)


def stream(seed: int, purpose: int, number: int = 0, client: int = 0) -> np.random.Generator:
    """The stream of this name, from its beginning."""
    return np.random.Generator(np.random.Philox(_key(seed, purpose, number, client)))


def torch_seed(seed: int, purpose: int, number: int, client: int) -> int:
    """Seed of torch's generator, which dropout draws from."""
    return int(_key(seed, purpose, number, client).generate_state(1, np.uint64)[0]) >> 1
