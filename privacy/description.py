"""Description of a mechanism as plain data: the one thing that others know of it.

Guarantee: none of its own. The ledger records a description, so that an audit can hold each round's
noise against it, and the privacy statement puts its words into the guarantee. What a description
leaves unsaid (None) cannot be checked: an audit skips the checks that need it, and says so.

The law of the clip is stated by ``norm`` and ``clips_to_bound``. One user's clipped update has a
norm of at most ``clip_norm``, in the norm that is stated, so that its L2 norm is at most
``Description.reach`` times ``clip_norm``: 1 where the norm is L1 or L2, the root of the number of
parameters where each element has the bound. The noise is counted in multiples of that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from privacy.errors import PrivacyError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Law = Literal["gaussian", "laplace"]
Reports = Literal["noised", "direction", "other"]
Norm = Literal["l1", "l2", "linf"]

# Noise that is drawn anew in each round: the strategy matrix is the identity.
FRESH = (1.0,)
OF_THE_BOUND = "the noise multiplier {z} times the clipping bound"
# What coefficients may differ by that two machines' L-BFGS found for one configuration.
SAME_COEFFICIENTS = 1e-6


# Of what is read back.
STRICT = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class Tree:
    """Noise at the complete nodes of binary trees over the rounds, once a node.

    Attributes:
        restart_every: Rounds of a tree; None for one tree over the whole run.
    """

    __pydantic_config__: ClassVar = STRICT

    restart_every: int | None

    def __post_init__(self) -> None:
        if self.restart_every is not None and self.restart_every < 1:
            raise PrivacyError(f"restart_every is {self.restart_every}, but must be at least 1")


@dataclass(frozen=True, slots=True)
class Inverse:
    """A lower triangular Toeplitz matrix C whose inverse is banded.

    Attributes:
        inverse: First column of C^-1, of which the rest is 0; begins above 0.
    """

    __pydantic_config__: ClassVar = STRICT

    inverse: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (self.inverse and self.inverse[0] > 0.0):
            raise PrivacyError(f"an inverse's column is {self.inverse}, but must begin above 0")

    def column(self, rounds: int) -> NDArray[np.float64]:
        """First column of C, shape (rounds,)."""
        import numpy as np
        from scipy.signal import lfilter

        impulse = np.zeros(rounds)
        impulse[:1] = 1.0
        found: NDArray[np.float64] = lfilter([1.0], self.inverse, impulse)
        return found


@dataclass(frozen=True, slots=True)
class Buffers:
    """A lower triangular Toeplitz matrix C whose column is a sum of geometric series.

    Its elements are ``first`` times 1, and then the sums over i of weights_i decays_i^(n - 1).

    Attributes:
        first: First element, above 0.
        weights: One for each buffer.
        decays: One for each buffer, in [0, 1).
    """

    __pydantic_config__: ClassVar = STRICT

    first: float
    weights: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        good = len(self.weights) == len(self.decays) and all(0 <= one < 1 for one in self.decays)
        if not (self.first > 0.0 and good):
            raise PrivacyError(
                f"buffers of first element {self.first}, weights {self.weights} and decays "
                f"{self.decays} are no strategy: as many weights as decays, from 0 to below 1"
            )

    def column(self, rounds: int) -> NDArray[np.float64]:
        """First column of C, shape (rounds,)."""
        import numpy as np

        powers = np.power(np.array(self.decays)[:, None], np.arange(max(rounds - 1, 0)))
        tail = np.array(self.weights) @ powers
        return np.asarray(self.first * np.concatenate([[1.0], tail])[:rounds])


@dataclass(frozen=True, slots=True)
class Columns:
    """A lower triangular banded matrix C of columns of norm at most 1, which are not stated.

    Attributes:
        bands: Rows that a column reaches.
    """

    __pydantic_config__: ClassVar = STRICT

    bands: int

    def __post_init__(self) -> None:
        if self.bands < 1:
            raise PrivacyError(f"bands is {self.bands}, but must be at least 1")


@dataclass(frozen=True, slots=True)
class Description:
    """Description of a mechanism.

    Attributes:
        words: How it noises, a clause for the guarantee's assumptions; "{z}" stands for the
            noise multiplier.
        law: Law of the noise in each element of a round's sum (of a client's report); None if
            there is no such law, or nobody states it.
        stddev: Standard deviation of that noise, in multiples of the noise multiplier times the
            round's clip_norm times ``reach``; where rounds go together, of the draws that their
            noise is made of; where a count is released, of the two together. None if nobody states
            it.
        strategy: How the noise of rounds goes together. A tuple is the first column of a lower
            triangular Toeplitz matrix C: the noise is C^-1 Z, with Z drawn anew in each round
            (``FRESH``: Z itself); ``Inverse`` and ``Buffers`` are such matrices that are not
            banded, ``Columns`` one that is not Toeplitz. None if nobody states it.
        reports: What clients send who randomise their own updates: "noised" is the clipped update
            with noise of ``law`` added, "direction" a report of ``privacy.noise.privunit`` of
            epsilon one over the noise multiplier, "other" something else. None where the noise is
            added to the sum, by a server that must be trusted.
        norm: Norm that ``clip_norm`` bounds: of "linf", it bounds each element.
        clips_to_bound: Whether an update beyond the bound is brought to the bound, and one within
            is added as it is, in the norm of ``norm``: scaled down, or of "linf" each element cut
            off. False where all that is stated is that the bound holds, as of elements that are
            cut off at bounds which together keep an L2 norm: an audit checks no more then.
        draws_count: Whether a noised count of unclipped updates is released beside the update.
    """

    __pydantic_config__: ClassVar = STRICT

    words: str
    law: Law | None = None
    stddev: float | None = None
    strategy: tuple[float, ...] | Tree | Inverse | Buffers | Columns | None = None
    reports: Reports | None = None
    norm: Norm = "l2"
    clips_to_bound: bool = True
    draws_count: bool = False

    def __post_init__(self) -> None:
        column = self.strategy if isinstance(self.strategy, tuple) else FRESH
        if not (column and column[0] > 0.0):
            raise PrivacyError(f"a strategy's column is {column}, but must begin above 0")

    def column(self, rounds: int) -> NDArray[np.float64] | None:
        """First column of the Toeplitz matrix C, as far as it is not 0; None without such a one."""
        import numpy as np

        if isinstance(self.strategy, tuple):
            return np.array(self.strategy)
        if isinstance(self.strategy, (Inverse, Buffers)):
            return self.strategy.column(rounds)
        return None

    @property
    def randomizes_clients(self) -> bool:
        """Whether clients randomise their own updates, so that no server need be trusted."""
        return self.reports is not None

    @property
    def correlates_rounds(self) -> bool:
        """Whether a round's noise depends on the rounds before, as far as anybody states."""
        return self.strategy != FRESH

    def reach(self, num_parameters: float) -> float:
        """The largest L2 norm of a vector of so many parameters whose ``norm`` is 1."""
        return math.sqrt(num_parameters) if self.norm == "linf" else 1.0

    @property
    def is_sampled_gaussian(self) -> bool:
        """Whether its rounds compose as Gaussian mechanisms, sampled as the users are."""
        plain = replace(self, words="", draws_count=False)
        return plain == Description("", law="gaussian", stddev=1.0, strategy=FRESH)

    def agrees(self, other: Description) -> bool:
        """Whether two descriptions are of one mechanism; words are not compared."""
        one, two = self.strategy, other.strategy
        if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
            near = all(
                math.isclose(a, b, rel_tol=0.0, abs_tol=SAME_COEFFICIENTS)
                for a, b in zip(one, two, strict=True)
            )
            two = one if near else two
        return self == replace(other, words=self.words, strategy=two)

    def to_json_dict(self) -> dict[str, Any]:
        """The description as JSON takes it, without its words."""
        facts = asdict(self)
        del facts["words"]
        # As it is read again: lists in place of tuples, those within a strategy too.
        taken: dict[str, Any] = json.loads(json.dumps(facts))
        return taken

    @classmethod
    def from_json_dict(cls, document: Mapping[str, Any]) -> Description:
        """Read what ``to_json_dict`` wrote, with "words" or without."""
        # Here, for calculations that read none, and load no pydantic.
        from pydantic import TypeAdapter

        try:
            text = json.dumps({"words": "", **document})
            return TypeAdapter(cls).validate_json(text, strict=True)
        except (TypeError, ValueError) as error:
            raise PrivacyError(
                f"a mechanism is described by {document!r}, which is no description; the file is "
                "damaged, or of another version"
            ) from error


# Of ``privacy.mechanisms.gaussian``: here, since calculations that name no mechanism are of it, and
# load neither torch nor pydantic.
GAUSSIAN = Description(
    "each round's sum of clipped updates gets Gaussian noise, once, in every element; its standard "
    f"deviation is {OF_THE_BOUND}",
    law="gaussian",
    stddev=1.0,
    strategy=FRESH,
)
# Of example-level DP, which is Opacus' own, and no plug-in.
DP_SGD = replace(
    GAUSSIAN,
    words="each step's sum of clipped gradients gets Gaussian noise, once, in every element; its "
    f"standard deviation is {OF_THE_BOUND}",
)
