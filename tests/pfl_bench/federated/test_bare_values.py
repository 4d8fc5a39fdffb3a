"""What reaches the centre of a private run without clipping or noise: nothing, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_bench.config.loading import load_config
from pfl_bench.runs.runner import run
from privacy.errors import PlanError
from tests.pfl_bench.test_user_plugins import ROW, folder

__all__ = ["folder"]

HEAD = '''"""An algorithm of a user's own."""
from pydantic import BaseModel, ConfigDict
from pfl_bench.types import Algorithm, UpdateTransform

class Options(BaseModel):
    """None."""
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

def build(options, local_training):
    return Own(local_training)

class Sends(UpdateTransform):
    def send(self, upload, result, round_index):
        CHANGE
        return upload

class Own(Algorithm):
    def __init__(self, local_training):
        self.local_training = local_training
        self.transform = Sends()

    def receive(self, weight, mean_scalar):
        if (weight, mean_scalar) != (20.0, 0.0):
            raise RuntimeError(f"the centre sees {weight} and {mean_scalar}")
'''


def use(folder: Path, code: str) -> Path:
    (folder / "algorithms" / "mine.py").write_text(code, encoding="utf-8")
    return folder.parent / "row.yaml"


def test_the_centre_is_told_the_configured_cohort_and_no_scalar(
    folder: Path, tmp_path: Path
) -> None:
    # Cohorts are Poisson samples: the realised sizes are others.
    row = use(folder, HEAD.replace("CHANGE", "pass"))
    assert run(load_config(row), tmp_path / "private")["rounds"] == 4
    text = ROW[: ROW.index("privacy:")] + ROW[ROW.index("evaluation:") :]
    row.write_text(text.replace("20\n", "20\n  sampling: poisson\n"), encoding="utf-8")
    with pytest.raises(RuntimeError, match="the centre sees"):
        run(load_config(row), tmp_path / "open")


@pytest.mark.parametrize(
    "change", ["upload.scalar = float(result.num_steps)", "upload.weight = float(result.loss)"]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_transform_that_sends_a_number_beside_the_update_is_refused(
    change: str, workers: int, folder: Path, tmp_path: Path
) -> None:
    row = use(folder, HEAD.replace("CHANGE", change))
    with pytest.raises(PlanError, match=r"federated\.algorithm 'mine': a client sends the weight"):
        run(load_config(row, [f"federated.workers={workers}"]), tmp_path / "out")
    assert not (tmp_path / "out" / "ledger.jsonl").read_text()


def test_an_algorithm_that_corrects_the_steps_of_a_user_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    head = "class Own(Algorithm):\n"
    code = HEAD.replace("CHANGE", "pass").replace(head, head + "    corrects_steps = True\n")
    row = use(folder, code)
    with pytest.raises(PlanError, match=r"federated\.algorithm 'mine': remembers clients"):
        run(load_config(row), tmp_path / "out")
