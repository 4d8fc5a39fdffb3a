"""Form of a private run's checkpoints: members, shapes of tensors, and values that are on record.

A sum before its noise, once kept "to debug" among what a run saves, leaves the machine with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pfl_bench.client.costs import CostMeter
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.files import to_json_value
from pfl_bench.runs import divergence
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.auditing.starts import noise_generator
from pfl_bench.runs.checkpoint import differences
from pfl_bench.trainers import dp_sgd
from pfl_bench.types import UserInputError
from privacy.audit.inputs import json_equal
from privacy.errors import PrivacyError
from privacy.mechanism import check_saved

Members = Mapping[str, Any]
# What trainers save; of one whose parts are not at hand, no more is known.
_TRAINER = dict.fromkeys(
    ("central", "optimizer", "mechanism", "private", "clients", "buffers", "noise_generator",
     "ledger", "seed", "statistics")
)  # fmt: skip


def saved_form(run: OpenedRun) -> dict[str, Any]:
    """The form of a run's checkpoints, closed; of data or model not at hand, of less."""
    config, trainer = run.resolved.config, _TRAINER
    best: dict[str, Any] = {"index": 0, "value": 0.0, "vector": None, "buffers": None}
    if not isinstance(run.opened, str):
        model = run.opened[1]
        best |= {"vector": model.vector, "buffers": model.buffers()}
        if config.central is not None:
            trainer = dp_sgd.saved_form(model, config.central, noise_generator(run)[0])
        # Without a plan the statement cannot be computed anew either, which says why.
        with suppress(UserInputError, PrivacyError, OSError):
            if config.federated is not None and (plan := run.federated[2]) is not None:
                trainer = FederatedTrainer.saved_form(*run.federated[:2], plan)
    return {
        **dict.fromkeys(("version", "step", "seconds"), 0.0),
        "settings": "",
        "trainer": trainer,
        "best": best,
        "costs": CostMeter.state_form(len(config.evaluation.budgets)),
        "divergence": divergence.STATE_FORM,
    }


def problems(
    run: OpenedRun, form: Members, state: Members, row: Members, summary: Members, start: Any
) -> Iterator[str]:
    """Members of a checkpoint beyond its form, in words; of others, what differs from the record.

    On record are its round's line of metrics ``row`` and the ``summary``, empty where there is
    none, and the first checkpoint's loss at the ``start``.
    """
    if foreign := [*differences(state, form, is_closed=True)]:
        yield from foreign
        return
    totals = (state.get("costs") or {}).get("totals") or {}
    stated = {key: row[name] for key in totals if (name := f"systems/total_{key}") in row}
    watched = state.get("divergence") or {}
    found = watched.get("found")
    for what, own, known in (
        ("costs.totals", totals, stated or totals),
        ("divergence.start", watched.get("start"), start),
        ("divergence.found", found, summary.get("diverged") if found and summary else found),
    ):
        if not json_equal(to_json_value(own), to_json_value(known)):
            yield f"{what} is {own!r:.80}, but {known!r:.80} is on record"
    if form["trainer"].get("mechanism") and (plan := run.federated[2]) is not None:
        try:
            check_saved(plan.mechanism, state["trainer"].get("mechanism") or {})
        except PrivacyError as error:
            yield f"trainer.mechanism: {error}"
