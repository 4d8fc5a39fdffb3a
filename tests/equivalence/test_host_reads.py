"""What clients and mechanisms do on the device asks for no value, outside a list with reasons.

By reading the code: branches that no test of ``test_step_operations`` takes are seen here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Calls that make the host wait for an accelerator, or put a tensor on one by name.
WAITING = {
    "item", "cpu", "numpy", "tolist", "nonzero", "unique", "coalesce", "masked_select", "cuda",
}  # fmt: skip
DEVICES = {"cuda", "mps"}
CLIENT = "pfl_bench/client"
# By file and function: what they ask for, and why no client's step waits for it.
ALLOWED = {
    f"{CLIENT}/costs.py:measure_step": "one step, before the run",
    f"{CLIENT}/flat_model.py:_digest": "once a run, before it",
    f"{CLIENT}/flat_model.py:descend": "of a sparse gradient: embeddings give them on a CPU alone",
    f"{CLIENT}/flat_model.py:_norms": "of a sparse gradient: embeddings give them on a CPU alone",
    f"{CLIENT}/flat_model.py:_scaled": "on a CPU alone",
    f"{CLIENT}/factored_gradients.py:take": "of a sparse gradient: a CPU's alone",
    f"{CLIENT}/batched/auto_slots.py:automatic_slots": "asks for the device's memory, once",
    f"{CLIENT}/batched/auto_slots.py:slots_of": "one step, before the run",
    f"{CLIENT}/batched/program.py:_states": "in the check before the first step",
    f"{CLIENT}/engines/sequential.py:train": "of an array of users",
    f"{CLIENT}/engines/vectorized.py:__init__": "asks whether steps are recorded, once",
    f"{CLIENT}/engines/vectorized.py:train": "of an array of users; after memory ran out",
    f"{CLIENT}/machine.py:*": "describes the machine, before the run",
    f"{CLIENT}/precision.py:*": "settings of the device, before the run",
    "privacy/mechanisms/none.py:accumulate": "on MPS, which has no float64",
}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def found(function: ast.FunctionDef) -> set[str]:
    """Names of waiting calls, and of devices, in a function's own code."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names |= {node.func.attr} & WAITING
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} & DEVICES
    return names


def looked_at() -> Iterator[tuple[str, ast.FunctionDef]]:
    """What clients run, and what mechanisms do with each client's update."""
    for path in sorted((ROOT / CLIENT).rglob("*.py")):
        for function in functions(ast.parse(path.read_text())):
            yield str(path.relative_to(ROOT)), function
    for path in sorted((ROOT / "privacy/mechanisms").glob("*.py")):
        for function in functions(ast.parse(path.read_text())):
            if "accumulate" in function.name or "randomize" in function.name:
                yield str(path.relative_to(ROOT)), function


def test_no_value_is_asked_for() -> None:
    places = {
        f"{file}:{function.name}": names
        for file, function in looked_at()
        if (names := found(function))
    }
    unexplained = {
        place: names
        for place, names in places.items()
        if place not in ALLOWED and f"{place.partition(':')[0]}:*" not in ALLOWED
    }
    assert not unexplained
    needless = [key for key in ALLOWED if not any(_covers(key, place) for place in places)]
    assert not needless


def _covers(key: str, place: str) -> bool:
    return place == key or (key.endswith(":*") and place.startswith(key[:-1]))


@pytest.mark.parametrize(
    "line", ["x.item()", "x.to('cuda')", "y = torch.unique(x)", "x[x.nonzero()]", "x.cuda()"]
)
def test_a_waiting_line_is_found(line: str) -> None:
    tree = ast.parse(f"def step(x):\n    {line}\n")
    assert found(next(functions(tree)))
