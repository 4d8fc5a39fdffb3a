"""Plug-ins that keep something between rounds: saved bit for bit, or refused with what mends it.

Each is one file that the test writes into a folder of its own, and the plug-ins find it there.
"""

from __future__ import annotations

import importlib
import io
import random
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench import plugins
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.central_gradient import write_gradient
from pfl_bench.federated.state_watch import ClientWatch, StateWatch
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.types import PluginError, Stateful
from tests.helpers import central_of, make_config, parts_of

HEAD = """
'''An algorithm of a user's own.'''
import torch
from pydantic import BaseModel, ConfigDict
from pfl_bench.types import Algorithm

class Options(BaseModel):
    '''None.'''
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

def build(options, local_training):
    return Own(local_training)

class Own(Algorithm):
    def __init__(self, local_training):
        self.local_training = local_training
"""
# The momentum is made in the first round; the counter decides how much of it is left.
MOMENTUM = """
        self.momentum = None
        self.round = 0

    def central_gradient(self, mean_update, out):
        self.round += 1
        if self.momentum is None:
            self.momentum = torch.zeros_like(mean_update)
        self.momentum.mul_(1 - 1 / (self.round + 1)).add_(mean_update)
        torch.neg(self.momentum, out=out)
"""
HIDDEN = """
        self.momentum = torch.zeros(())

    def central_gradient(self, mean_update, out):
        self.momentum = 0.5 * self.momentum + mean_update
        torch.neg(self.momentum, out=out)
"""
OWN_STATE = """
    def state_dict(self):
        return {"something": 1}

    def load_state_dict(self, state):
        pass
"""

Plant = Callable[[plugins.PluginKind, str, str], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Puts a file of a user's own where plug-ins of a kind are looked for."""
    planted: list[str] = []

    def write(kind: plugins.PluginKind, name: str, text: str) -> None:
        folder = tmp_path / "plug-ins" / kind.package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        package = importlib.import_module(kind.package)
        folders = [*package.__path__, str(folder)]
        monkeypatch.setattr(package, "__path__", folders)
        monkeypatch.setattr(package.__spec__, "submodule_search_locations", folders)
        importlib.invalidate_caches()
        planted.append(f"{kind.package}.{name}")

    yield write
    for name in planted:
        sys.modules.pop(name, None)


def own(**changes: Any) -> ResolvedConfig:
    return make_config("federated", federated__algorithm={"name": "own"}, **changes)


class KilledError(Exception):
    """The process ends here."""


def run_and_resume(
    config: ResolvedConfig, folder: Path, round_index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run, die in a round, and resume in the same folder with everything built anew."""
    from pfl_bench.federated.trainer import FederatedTrainer

    advance = FederatedTrainer.advance

    def die(self: FederatedTrainer, index: int) -> dict[str, float]:
        if index == round_index:
            raise KilledError
        return advance(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(FederatedTrainer, "advance", die)
        with pytest.raises(KilledError):
            run(config, folder)
    run(config, folder, resume=True)


def test_an_algorithm_with_a_tensor_of_its_own_resumes_bit_for_bit(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(plugins.ALGORITHM, "own", HEAD + MOMENTUM)
    config = own(checkpoint__every=1)
    run(config, tmp_path / "whole")
    run_and_resume(config, tmp_path / "killed", 3, monkeypatch)
    assert torch.equal(central_of(tmp_path / "killed"), central_of(tmp_path / "whole"))
    # The momentum matters: without it the run ends elsewhere.
    run(make_config("federated"), tmp_path / "fedavg")
    assert not torch.equal(central_of(tmp_path / "fedavg"), central_of(tmp_path / "whole"))


def test_an_attribute_that_the_algorithm_s_own_state_lacks_is_refused(
    plant: Plant, tmp_path: Path
) -> None:
    plant(plugins.ALGORITHM, "own", HEAD + HIDDEN + OWN_STATE)
    with pytest.raises(PluginError) as refused:
        run(own(), tmp_path / "run")
    message = str(refused.value)
    assert "federated.algorithm 'own': its attribute 'momentum' changed in round 1" in message
    assert "Add 'momentum' to state_dict() and load_state_dict()" in message
    assert "'scratch'" in message
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


def test_an_attribute_named_as_scratch_is_not_saved_and_not_refused(
    plant: Plant, tmp_path: Path
) -> None:
    scratch = '\n    scratch = ("momentum",)\n'
    plant(plugins.ALGORITHM, "own", HEAD + HIDDEN + OWN_STATE + scratch)
    assert run(own(), tmp_path / "run")["status"] == "finished"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("torch.Generator()", "Generator"),
        ("torch.optim.SGD([torch.zeros(3)], lr=0.1)", "SGD"),
        ("{3, 5}", "set"),
        ("[iter([1, 2])]", "list_iterator"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_trained(
    value: str, kind: str, plant: Plant, tmp_path: Path
) -> None:
    plant(plugins.ALGORITHM, "own", HEAD + f"        self.kept = {value}\n")
    with pytest.raises(PluginError, match=f"its attribute 'kept' is a {kind}") as refused:
        run(own(), tmp_path / "run")
    assert "write state_dict() and load_state_dict() that hold what 'kept'" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_half_a_state_and_a_foreign_class_are_refused(plant: Plant, tmp_path: Path) -> None:
    half = dedent(OWN_STATE).split("def load")[0].replace("\n", "\n    ")
    plant(plugins.ALGORITHM, "own", HEAD + half)
    with pytest.raises(PluginError, match=r"state_dict\(\) of its own but no load_state_dict\(\)"):
        run(own(), tmp_path / "run")
    plant(plugins.ALGORITHM, "foreign", HEAD.replace("Own(Algorithm)", "Own"))
    config = make_config("federated", federated__algorithm={"name": "foreign"})
    with pytest.raises(PluginError, match=r"does not derive from pfl_bench\.types\.\w+\.Algorithm"):
        run(config, tmp_path / "run")


RETURNS = """
    def central_gradient(self, mean_update, out):
        return -mean_update
"""
HALF = """
    def central_gradient(self, mean_update, out):
        torch.neg(mean_update[:-1], out=out[:-1])
"""
SHAPED = """
    def central_gradient(self, mean_update, out):
        out.data = -mean_update.view(1, -1)
"""
BEFORE = """
    def central_gradient(self, mean_update, out):
        out.mul_(0.9).sub_(mean_update)
"""


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (RETURNS, "central_gradient returns a Tensor, which nothing reads: write the gradient"),
        (HALF, "central_gradient leaves 1 of the 650 elements of `out` NaN"),
        (SHAPED, "central_gradient gives `out` the shape (1, 650), where it has (650,)"),
        (BEFORE, "central_gradient leaves 650 of the 650 elements of `out` NaN"),
    ],
    ids=["returned", "half", "shaped", "read"],
)
def test_a_gradient_that_is_not_written_is_refused_with_its_file(
    hook: str, words: str, plant: Plant, tmp_path: Path
) -> None:
    plant(plugins.ALGORITHM, "own", HEAD + hook)
    with pytest.raises(PluginError) as refused:
        run(own(), tmp_path / "run")
    assert words in str(refused.value)
    assert re.match(r".*/own\.py: Own\.", str(refused.value))


def test_training_that_diverges_is_not_said_to_leave_its_gradient_unwritten() -> None:
    update, out = torch.tensor([1.0, torch.nan, -torch.inf]), torch.zeros(3)
    write_gradient(parts_of(make_config("federated")).algorithm, update, out)
    torch.testing.assert_close(out, -update, equal_nan=True)


IN_PLACE = """
    def central_gradient(self, mean_update, out):
        out.copy_(mean_update.mul_(-3.0))
"""


def test_what_an_algorithm_makes_of_its_mean_update_is_not_the_release(
    plant: Plant, tmp_path: Path
) -> None:
    plant(plugins.ALGORITHM, "own", HEAD + IN_PLACE)
    name, canaries = {"name": "own"}, {"kind": "one_run", "count": 20}
    changes = {"federated__algorithm": name, "privacy__audit": canaries}
    run(make_config("private_federated", **changes), tmp_path / "run")
    done = audit_run(tmp_path / "run", 1)
    assert [check.name for check in done.checks if check.outcome == "failed"] == []


def test_an_algorithm_without_local_training_is_refused_with_its_file(
    plant: Plant, tmp_path: Path
) -> None:
    plant(plugins.ALGORITHM, "own", HEAD.replace("= local_training", "= None"))
    wanted = r"/own\.py: Own\.local_training is None, but must be a LocalTraining: keep the one"
    with pytest.raises(PluginError, match=wanted):
        run(own(), tmp_path / "run")


COUNTS = """
        self.kept = None

    def receive(self, weight, mean_scalar):
        self.weight = weight

    def central_gradient(self, mean_update, out):
        self.kept = mean_update.clone() if self.kept is None else 0.5 * self.kept + mean_update
        torch.mul(self.kept, -self.weight / 10, out=out)
"""
WHOLE = """
    def central_gradient(self, mean_update, out):
        torch.mul(mean_update, -1 / mean_update.norm(), out=out)
"""
LEAKS = """
        from pfl_bench.types import UpdateTransform

        class Sees(UpdateTransform):
            def send(self, upload, result, round_index):
                algorithm.seen = result.update.clone()
                return upload

        algorithm, self.transform = self, Sees()

    scratch = ("seen",)

    def central_gradient(self, mean_update, out):
        torch.neg(mean_update + 0.01 * self.__dict__.get("seen", 0.0), out=out)
"""


@pytest.mark.parametrize(
    ("hook", "outcome", "problem"),
    [
        (COUNTS, "passed", ""),
        (WHOLE, "skipped", ""),
        (LEAKS, "failed", "next central parameters: differ by"),
    ],
    ids=["counts", "whole", "leaks"],
)
def test_an_audit_takes_the_central_step_by_the_algorithms_own_function(
    hook: str, outcome: str, problem: str, plant: Plant, tmp_path: Path
) -> None:
    plant(plugins.ALGORITHM, "own", HEAD + hook)
    algorithm = {"name": "own"}
    config = make_config("private_federated", federated__algorithm=algorithm, checkpoint__every=2)
    run(config, tmp_path / "run")
    checks = {check.name: check for check in audit_run(tmp_path / "run", recompute="all").checks}
    step, again = checks["central_step"], checks["recomputation"]
    assert (step.outcome, again.outcome) == (outcome, "failed" if problem else "passed")
    assert problem in again.evidence
    assert step.numbers.get("rounds", 6) == 6
    assert step.outcome != "skipped" or "at one place rests on other places" in step.evidence


AGGREGATION = """
'''A mean with momentum.'''
from dataclasses import replace
import torch
from pydantic import BaseModel, ConfigDict
from pfl_bench.federated.aggregation import Aggregation

class Options(BaseModel):
    '''None.'''
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

class Own(Aggregation):
    def __init__(self):
        self.momentum = 0.0

    def release(self, aggregate, rng):
        release = super().release(aggregate, rng)
        self.momentum = release.mean_update + 0.5 * self.momentum
        return replace(release, mean_update=self.momentum)

def build(options, noise):
    return Own()
"""
COMPRESSION = """
'''Sends the mean of the updates so far.'''
from pydantic import BaseModel, ConfigDict
from pfl_bench.federated.compression import Compression

class Options(BaseModel):
    '''None.'''
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

class Own(Compression):
    keeps_state = True

    def __init__(self, num_parameters):
        super().__init__(num_parameters, 2 * num_parameters)
        self.sums = {}

    def compress(self, update, user, round_index):
        count, total = self.sums.get(user, (0, 0.0))
        self.sums[user] = (count + 1, total + update)
        return self.sums[user][1] / (count + 1)

def build(options, num_parameters, seed):
    return Own(num_parameters)
"""
SELECTION = """
'''Those who were selected least often.'''
import numpy as np
from pfl_bench.config.training import Strict as Options
from pfl_bench.simulation.selectors import Selector

class Own(Selector):
    def __init__(self, users):
        self.times = np.zeros(len(users), np.int64)

    def select(self, candidates, number, index, rng):
        return candidates[np.argsort(self.times[candidates], kind="stable")[:number]]

    def report(self, feedback):
        self.times[feedback.users] += 1

def build(options, users):
    return Own(users)
"""
OTHERS = {
    "aggregation": (plugins.AGGREGATION, AGGREGATION, {}),
    "compression": (plugins.COMPRESSION, COMPRESSION, {}),
    "selection": (plugins.SELECTION, SELECTION, {"systems": {"source": {"name": "generated"}}}),
}


@pytest.mark.parametrize("key", OTHERS)
def test_other_plug_ins_that_learn_resume_bit_for_bit(
    key: str, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, text, more = OTHERS[key]
    plant(kind, "own", text)
    changes = {f"federated__{key}": {"name": "own"}, "checkpoint__every": 1, **more}
    config = make_config("federated", **changes)
    run(config, tmp_path / "whole")
    run_and_resume(config, tmp_path / "killed", 4, monkeypatch)
    assert torch.equal(central_of(tmp_path / "killed"), central_of(tmp_path / "whole"))


TRANSFORM = """
        from pfl_bench.types import UpdateTransform

        class Counts(UpdateTransform):
            uploads = 0

            def send(self, upload, result, round_index):
                self.uploads += 1
                return upload
            __state__

        self.transform = Counts()
"""


@pytest.mark.parametrize(
    ("key", "attribute"),
    [("aggregation", "momentum"), ("compression", "sums"), ("selection", "times")],
)
def test_an_attribute_that_another_plug_in_s_own_state_lacks_is_refused(
    key: str, attribute: str, plant: Plant, tmp_path: Path
) -> None:
    kind, text, more = OTHERS[key]
    plant(kind, "own", text.replace("\ndef build", OWN_STATE + "\ndef build"))
    changes = {f"federated__{key}": {"name": "own"}, **more}
    wanted = rf"federated\.{key} 'own': its attribute '{attribute}'.* changed in round 1"
    with pytest.raises(PluginError, match=wanted):
        run(make_config("federated", **changes), tmp_path / "run")


def test_an_attribute_that_the_state_of_an_algorithm_s_transform_lacks_is_refused(
    plant: Plant, tmp_path: Path
) -> None:
    state = OWN_STATE.replace("\n", "\n" + 8 * " ")
    plant(plugins.ALGORITHM, "own", HEAD + TRANSFORM.replace("            __state__", state))
    wanted = "federated.algorithm 'own', its transform: its attribute 'uploads' changed in round 1"
    with pytest.raises(PluginError, match=wanted):
        run(own(), tmp_path / "run")


class Everything(Stateful):
    """One of each kind of value that is saved by itself."""

    def __init__(self, start: float) -> None:
        self.tensor = torch.full((3,), start)
        self.array = np.full((2, 2), start, np.float32)
        self.scalar = np.float32(start)
        self.number = start
        self.text = str(start)
        self.nested = {"a": [torch.full((1,), start), (1, None)], 3: np.arange(int(start))}
        self._hidden = start

    def values(self) -> str:
        return repr(vars(self))


def test_every_kind_of_plain_value_comes_back(tmp_path: Path) -> None:
    one, other = Everything(5.0), Everything(1.0)
    held = other.tensor
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.values() == one.values()
    assert type(other.scalar) is np.float32
    # In place: whoever else holds the tensor sees it.
    assert other.tensor is held


class Deep(Stateful):
    """Changes something inside a helper object, which is not saved."""

    def __init__(self) -> None:
        self.helper = Helper()


class Helper:
    def __init__(self) -> None:
        self.total = torch.zeros(2)


def test_changes_inside_helper_objects_and_in_place_are_seen() -> None:
    part = Deep()
    watch = StateWatch({"it": part})
    watch.begin()
    watch.check(1)
    watch.begin()
    part.helper.total += 1
    with pytest.raises(PluginError, match="its attribute 'helper' changed in round 1"):
        watch.check(1)


class Keeps(Stateful):
    """Keeps what it is given."""

    def __init__(self, value: Any) -> None:
        self.kept = [value]


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Linear(1, 1),
        np.random.default_rng(0),
        np.random.RandomState(0),
        random.Random(0),
        io.StringIO(),
        Counter(),
        deque([1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_that_changes_as_it_is_used_is_refused(value: Any) -> None:
    with pytest.raises(PluginError, match=f"'kept' is a {type(value).__name__}, which changes"):
        StateWatch({"it": Keeps(value)})


class Draws(Stateful):
    """Draws by generators, and writes its state itself, but for what it lacks."""

    def __init__(self, lacks: str) -> None:
        self._rng = np.random.default_rng(0)
        self._coins = torch.Generator()
        self._total = torch.zeros(2)
        self._rounds: set[int] = set()
        self._lacks = lacks

    def state_dict(self) -> dict[str, Any]:
        rng, coins = self._rng.bit_generator.state, self._coins.get_state()
        state: dict[str, Any] = {"rng": rng, "coins": coins, "sums": {"all": [self._total]}}
        state["rounds"] = sorted(self._rounds)
        return {key: value for key, value in state.items() if key != self._lacks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nobody calls it."""

    def draw(self) -> None:
        self._total += torch.rand(2, generator=self._coins) + self._rng.random()
        self._rounds.add(1)


@pytest.mark.parametrize(
    ("lacks", "name"),
    [
        ("nothing", ""),
        ("rng", "_rng"),
        ("coins", "_coins"),
        ("sums", "_total"),
        ("rounds", "_rounds"),
    ],
)
def test_a_state_of_its_own_may_hold_generators_and_must(lacks: str, name: str) -> None:
    part = Draws(lacks)
    watch = StateWatch({"it": part})
    watch.begin()
    part.draw()
    if not name:
        watch.check(1)
        return
    with pytest.raises(PluginError, match=f"its attribute '{name}' changed in round 1"):
        watch.check(1)


class Sees(Stateful):
    """Sees clients train."""

    def __init__(self) -> None:
        self.norms = [1.0]
        self.users = {3: 1.0}
        self.last = torch.zeros(2)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("norms", lambda part: part.norms.append(2.0)),
        ("users", lambda part: part.users.pop(3)),
        ("last", lambda part: part.last.add_(1.0)),
        ("first", lambda part: setattr(part, "first", 1.0)),
    ],
    ids=["longer", "shorter", "in place", "new"],
)
def test_each_change_while_clients_are_trained_is_seen(
    name: str, change: Callable[[Sees], object]
) -> None:
    part = Sees()
    watch = ClientWatch({"it": part}, {}, "which is wrong")
    watch.begin()
    watch.check()
    change(part)
    with pytest.raises(PluginError, match=f"its attribute '{name}' changed while clients were"):
        watch.check()
