"""Plug-ins of which a process would not see what another has changed: refused, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_bench import plugins
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, PluginError, WorkerError
from tests.equivalence.test_processes import InTurn, interrupted, outcome, small
from tests.pfl_bench.test_user_plugins import folder

__all__ = ["folder"]

HEAD = '''"""A user's own."""
from dataclasses import replace

import torch

from pfl_bench.config.training import NoOptions as Options
from pfl_bench.federated.aggregation import Aggregation
from pfl_bench.federated.compression import Compression
from pfl_bench.types import Algorithm, UpdateTransform


def build(*given):
    return Own(*given)

'''
# Of each client the mean of its updates so far; keeps_state is forgotten.
REMEMBERS = """
class Own(Compression):
    def __init__(self, options, num_parameters, seed):
        super().__init__(num_parameters, 2 * num_parameters)
        self.sums = {}

    def compress(self, update, user, round_index):
        count, total = self.sums.get(user, (0, 0.0))
        self.sums[user] = (count + 1, total + update)
        return self.sums[user][1] / (count + 1)
"""
# Clients cut to what the centre has found in the rounds before.
ASKS_CENTRE = """
class Cuts(UpdateTransform):
    def __init__(self, algorithm):
        self.algorithm = algorithm

    def send(self, upload, result, round_index):
        largest = self.algorithm.largest
        return replace(upload, update=upload.update.clamp(-largest, largest))


class Own(Algorithm):
    def __init__(self, options, local_training):
        self.local_training = local_training
        self.largest = 1.0
        self.transform = Cuts(self)

    def central_gradient(self, mean_update, out):
        self.largest = 0.5 * float(mean_update.abs().max())
        torch.neg(mean_update, out=out)
"""
# Karimireddy, He and Jaggi 2021: updates are clipped about the mean of the round before.
CENTRED = """
class Own(Aggregation):
    def __init__(self, options, noise):
        self.mean = None

    def accumulate(self, aggregate, update, weight, client_rng=None):
        if self.mean is not None:
            away = update - self.mean
            update = self.mean + away * min(1.0, 0.5 / float(away.norm()))
        return super().accumulate(aggregate, update, weight, client_rng)

    def release(self, aggregate, rng):
        release = super().release(aggregate, rng)
        self.mean = release.mean_update.clone()
        return release
"""
# Xu et al. 2021, FedCM: each step goes along the mean of the round before, too.
CORRECTS = """
class Own(Algorithm):
    corrects_steps = True

    def __init__(self, options, local_training):
        self.local_training = local_training
        self.mean = None

    def correction(self, user):
        return None if self.mean is None else -0.1 * self.mean

    def central_gradient(self, mean_update, out):
        self.mean = mean_update.clone()
        torch.neg(mean_update, out=out)
"""
# What is written anew for each client is no memory.
BUFFER = """
class Own(Compression):
    scratch = ("half",)

    def __init__(self, options, num_parameters, seed):
        super().__init__(num_parameters, 2 * num_parameters)
        self.half = torch.zeros(num_parameters)

    def compress(self, update, user, round_index):
        return torch.mul(update, 0.5, out=self.half)
"""
IN_PLACE = """
class Own(Compression):
    def __init__(self, options, num_parameters, seed):
        super().__init__(num_parameters, 2 * num_parameters)
        self.sum = torch.zeros(num_parameters)

    def compress(self, update, user, round_index):
        return self.sum.add_(update).clone()
"""
LATE = """
class Own(Compression):
    def __init__(self, options, num_parameters, seed):
        super().__init__(num_parameters, 2 * num_parameters)

    def compress(self, update, user, round_index):
        self.first = self.__dict__.get("first", update.clone())
        return self.first
"""
# The transform knows the algorithm by its class alone.
TELLS = """
class Tells(UpdateTransform):
    def send(self, upload, result, round_index):
        Own.own.seen = result.update.clone()
        return upload


class Own(Algorithm):
    def __init__(self, options, local_training):
        self.local_training = local_training
        self.transform = Tells()
        Own.own = self
"""
# A transform that is no attribute of the object.
SHARED = """
class Sums(UpdateTransform):
    sum = 0.0

    def send(self, upload, result, round_index):
        self.sum = self.sum + result.update
        return replace(upload, update=self.sum)


class Own(Algorithm):
    transform = Sums()

    def __init__(self, options, local_training):
        self.local_training = local_training
"""
# Only its own state has what it keeps.
HELPER = """
class Kept:
    total = 0.0


class Own(Compression):
    def __init__(self, options, num_parameters, seed):
        super().__init__(num_parameters, 2 * num_parameters)
        self.kept = Kept()

    def compress(self, update, user, round_index):
        self.kept.total = self.kept.total + update
        return self.kept.total

    def state_dict(self):
        return {"kept": self.kept.total}

    def load_state_dict(self, state):
        self.kept.total = state["kept"]
"""
# Each client is clipped to what the others before it have shown.
MECHANISM = '''
"""A user's own."""
from privacy.mechanisms.gaussian import Gaussian, Options


class Own(Gaussian):
    """Gaussian noise."""

    name = "own"
    longest = 0.0

    def accumulate(self, aggregate, update, weight, rng=None):
        self.longest = max(self.longest, float(update.norm()))
        return super().accumulate(aggregate, update / self.longest, weight, rng)


def build(options, noise):
    return Own(options.clip_norm, noise)
'''
CENTRE = "changed at the centre, between two rounds or on resuming, which the other processes"
REFUSED = {
    "remembers": (
        "compression",
        REMEMBERS,
        "compression 'own': its attribute 'sums' changed while clients were trained, which the "
        r"other processes .*; set federated\.workers: 1 \(and in a transform keeps_state to True",
    ),
    "asks": ("algorithm", ASKS_CENTRE, f"algorithm 'own'.*: its attribute '.*largest' {CENTRE}"),
    "centred": ("aggregation", CENTRED, f"aggregation 'own': its attribute 'mean' {CENTRE}"),
    "corrects": ("algorithm", CORRECTS, r"algorithm 'own' keeps .* set federated\.workers: 1"),
}


def use(folder: Path, key: str, code: str) -> dict[str, dict[str, str]]:
    """Plant a plug-in of the section "federated"; what to change in a configuration to use it."""
    path = folder / f"{key}s" / "own.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + code, encoding="utf-8")
    plugins.add_folder(folder)
    return {f"federated__{key}": {"name": "own"}}


@pytest.mark.parametrize(("key", "code", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_one_process_alone_would_see_is_refused(
    key: str, code: str, words: str, folder: Path, tmp_path: Path
) -> None:
    config = small("federated", **use(folder, key, code))
    with pytest.raises((PluginError, ConfigError), match=words):
        run(config, tmp_path / "shared", group=InTurn(3))
    # What has been trained by then is that of one process, which goes on.
    run(config, tmp_path / "alone")
    run(config, tmp_path / "shared", resume=(tmp_path / "shared" / "config.yaml").exists())
    assert outcome(tmp_path / "shared") == outcome(tmp_path / "alone")


def test_a_client_s_memory_is_refused_where_rank_0_trains_nobody(
    folder: Path, tmp_path: Path
) -> None:
    config = small("federated", federated__cohort_size=1, **use(folder, "compression", REMEMBERS))
    # One shard, which is the last process's.
    with pytest.raises(PluginError, match="its attribute 'sums' changed while clients were"):
        run(config, tmp_path / "shared", group=InTurn(3))


def test_state_of_a_run_that_one_process_began_is_refused(folder: Path, tmp_path: Path) -> None:
    config = small("federated", **use(folder, "algorithm", ASKS_CENTRE))

    def lose() -> None:
        raise WorkerError("this process ends")

    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, 4, lose)
        with pytest.raises(WorkerError):
            run(config, tmp_path / "run")
    with pytest.raises(PluginError, match=CENTRE):
        run(config, tmp_path / "run", resume=True, group=InTurn(2))
    state = load_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state["step"] == 3


@pytest.mark.parametrize(
    ("key", "code", "name"),
    [
        ("compression", REMEMBERS, "sums"),
        ("compression", IN_PLACE, "sum"),
        ("compression", LATE, "first"),
        ("algorithm", TELLS, "seen"),
        ("algorithm", SHARED, "sum"),
        ("compression", HELPER, "kept"),
    ],
    ids=["remembers", "in place", "late", "tells", "shared", "helper"],
)
def test_a_memory_of_clients_in_a_private_run_is_refused_before_anything_is_released(
    key: str, code: str, name: str, folder: Path, tmp_path: Path
) -> None:
    changes = use(folder, key, code)
    with pytest.raises(PluginError, match=f"'{name}' changed while .* which no mechanism covers"):
        run(small("private_federated", **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.jsonl").read_text()


def test_a_mechanism_that_remembers_clients_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "mechanisms").mkdir()
    (folder / "mechanisms" / "own.py").write_text(MECHANISM, encoding="utf-8")
    plugins.add_folder(folder)
    changes = {"privacy__mechanism": {"name": "own", "clip_norm": 0.5}}
    with pytest.raises(PluginError, match="mechanism 'own': its attribute 'longest' changed while"):
        run(small("private_federated", **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.jsonl").read_text()


def test_a_buffer_named_as_scratch_is_accepted(folder: Path, tmp_path: Path) -> None:
    config = small("private_federated", **use(folder, "compression", BUFFER))
    run(config, tmp_path / "alone")
    run(config, tmp_path / "shared", group=InTurn(3))
    assert outcome(tmp_path / "shared") == outcome(tmp_path / "alone")
