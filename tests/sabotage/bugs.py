"""All planted bugs, in the order of the table in ``docs/planted_bugs.md``."""

from __future__ import annotations

from tests.sabotage.accounting_bugs import ACCOUNTING_BUGS
from tests.sabotage.central_bugs import CENTRAL_BUGS
from tests.sabotage.clipping_bugs import CLIPPING_BUGS
from tests.sabotage.draw_bugs import DRAW_BUGS
from tests.sabotage.folder_bugs import FOLDER_BUGS
from tests.sabotage.noise_bugs import NOISE_BUGS
from tests.sabotage.planting import Bug
from tests.sabotage.record_bugs import RECORD_BUGS
from tests.sabotage.sampling_bugs import SAMPLING_BUGS
from tests.sabotage.unseen_bugs import UNSEEN

BUGS: tuple[Bug, ...] = (
    *NOISE_BUGS,
    *DRAW_BUGS,
    *CLIPPING_BUGS,
    *SAMPLING_BUGS,
    *ACCOUNTING_BUGS,
    *RECORD_BUGS,
    *CENTRAL_BUGS,
    *FOLDER_BUGS,
)

__all__ = ["BUGS", "UNSEEN"]
