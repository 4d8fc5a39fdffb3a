"""Have the statistics of the features, which are released before the first step, their noise?

Guarantee: checked here is that they are released as configured, and that the noise on each of the
two sums, measured from outside by sums of its own, has the claimed standard deviation: the squares
of K elements follow the chi-squared law of K degrees. A sum without noise, or not clipped to its
bound, is beyond it on either side. Not seen is noise that is wrong by less than the law's width:
some 35 % of the standard deviation for 81 channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privacy.audit.check import Finding, check
from privacy.audit.errors import SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number

_VECTORS = ("mean", "square")


@check(
    "statistics",
    "Mean and mean square of the features were each released with the noise that is accounted.",
)
def check_statistics(evidence: Evidence, inputs: AuditInputs) -> Finding:
    from scipy import stats

    claimed = inputs.configured.mechanism_options.get("statistics")
    recorded = evidence.constants.get("statistics")
    if claimed is None and recorded is None:
        raise SkippedError("no statistics of the data are released beside the steps")
    evidence.need_lines()
    found, shown = Finding(), []
    if claimed is None or not isinstance(recorded, Mapping):
        found.problems.append("statistics are either configured or recorded, and not both")
        return found.seen("nothing")
    for name in _VECTORS:
        vector: Any = recorded.get(name)
        vector = vector if isinstance(vector, Mapping) else {}
        count, squares = as_number(vector.get("count")), as_number(vector.get("sum_squares"))
        if not count >= 1.0 or math.isnan(squares):
            found.problems.append(f"the noise of the {name} is not recorded")
            continue
        law: Any = stats.chi2(count)
        tail = 2.0 * min(float(law.cdf(squares)), float(law.sf(squares)))
        found.test(f"the noise of the {name} is not of the claimed size", tail, len(_VECTORS))
        shown.append(f"{name}: {math.sqrt(squares / count):.4g} of what is claimed, of {count:g}")
    return found.seen(f"measured standard deviation of the noise, {'; '.join(shown)} elements")
