"""All bugs that were planted by somebody who had not read the checks."""

from __future__ import annotations

from tests.sabotage.blind_clipping import CLIPPING
from tests.sabotage.blind_noise import NOISE
from tests.sabotage.blind_planting import Blind
from tests.sabotage.blind_record import RECORD
from tests.sabotage.blind_release import RELEASE
from tests.sabotage.blind_sampling import SAMPLING
from tests.sabotage.blind_second import SECOND

BLIND_BUGS: tuple[Blind, ...] = (*SAMPLING, *CLIPPING, *NOISE, *RELEASE, *RECORD, *SECOND)
