"""Is the statement what the configuration comes to?

Guarantee: checked here is that every field of ``privacy.json``, its caveats among them, is what the
code of today computes from ``config.yaml`` and the data: noise, budget, populations, the rounds of
a run that has ended, and what is not covered. Where code, versions or processor are not the run's,
words may differ without a lie, and numbers by what optimizers and calibration leave open.
"""

from __future__ import annotations

from typing import Any

from privacy.audit.check import Finding, check
from privacy.audit.evidence import Evidence, IncompleteError
from privacy.audit.inputs import AuditInputs, differing

# Relative: coefficients that another machine optimizes differ by less.
_OF_ANOTHER_MACHINE = 1e-3
# What other code may word otherwise.
_WORDED = ("not_covered", "notes", "mechanism_description")
# What ``not_covered`` names of any run: listed once more, apart from the code that states it.
_CAVEATS = (
    "test metrics", "model selection", "hyperparameter tuning", "names of clients",
    "data preparation", "settings taken from the data", "training began with", "diagnostics",
    "seeded", "training split", "how many users",
)  # fmt: skip


@check(
    "statement",
    "Each field of the privacy statement is what configuration, data and code come to.",
)
def check_statement(evidence: Evidence, inputs: AuditInputs) -> Finding:
    rebuilt, found = inputs.rebuilt, Finding()
    if rebuilt.unknown:
        raise IncompleteError(f"the statement cannot be computed anew: {rebuilt.unknown}")
    nonce, is_here = inputs.seed.nonce, inputs.seed.is_of_this_machine
    stated, unknown = inputs.statement, []
    other = (
        "by other code, versions or another processor than the run's, so that it may differ "
        f"without a fault: audit it by those{' (see plugins)' * bool(inputs.plugins.get('added'))}"
    )
    if rebuilt.statement is None:
        if not is_here:
            raise IncompleteError(f"{rebuilt.refused}; {other}")
        return Finding([rebuilt.refused]).seen("the configuration")
    near = 1e-9 if is_here else _OF_ANOTHER_MACHINE
    for path, before, now in differing(stated, rebuilt.statement, near=near):
        if not is_here and path.partition(".")[0] in _WORDED:
            unknown.append(path)
        else:
            found.problems.append(f"{path} is {_short(before)}, but comes to {_short(now)}")
    best = None if inputs.metrics is None else inputs.metrics.best
    notes = str(stated.get("notes"))
    for what, said in (
        ("metric that selects the model", best and best[0]),
        ("nonce that pins the noise", nonce),
    ):
        found.add(said is not None and str(said) not in notes, f"no note says the {what}: {said}")
    caveats = str(stated.get("not_covered")).lower()
    silent = [caveat for caveat in _CAVEATS if caveat not in caveats]
    found.add(is_here and bool(silent), f"not_covered does not name {', '.join(silent)}")
    if unknown and not found.problems:
        raise IncompleteError(f"{', '.join(unknown)} would be stated otherwise, {other}")
    return found.seen(f"{len(rebuilt.statement)} fields computed anew")


def _short(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 80 else f"{text[:77]}..."
