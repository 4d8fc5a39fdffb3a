"""The fifth list by others: planted by somebody who had read neither checks nor reference."""

from __future__ import annotations

from tests.sabotage import (
    fifth_accounting,
    fifth_clipping,
    fifth_dp_sgd,
    fifth_noise,
    fifth_release,
    fifth_sampling,
)
from tests.sabotage.fifth_planting import FifthBug
from tests.sabotage.fifth_sound import SOUND

BUGS: tuple[FifthBug, ...] = (
    *fifth_clipping.BUGS,
    *fifth_noise.BUGS,
    *fifth_sampling.BUGS,
    *fifth_accounting.BUGS,
    *fifth_dp_sgd.BUGS,
    *fifth_release.BUGS,
)
RUNS: tuple[FifthBug, ...] = (*BUGS, *SOUND)
