"""The options of LEAF's data tools."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

from pfl_bench.types import SplitBy
from tasks.common.options import StrictOptions

# Of the option that chooses a form; two tasks once called it by the second.
FORM_NAMES = AliasChoices("form", "variant")
# Options of a split that is made here.
OF_SPLIT = ("split_by", "train_fraction", "val_fraction")
_SAMPLING = ("user_fraction", "num_users", "data_fraction")


def check_fractions(train: float, val: float) -> None:
    """Refuse, by a ValueError, fractions for train and val that leave less than nothing."""
    if train + val > 1 + 1e-9:
        raise ValueError(
            f"train_fraction {train} and val_fraction {val} sum to more than 1; what they leave is "
            "the test split"
        )


class PartitionOptions(StrictOptions):
    """Filter of users and division of their examples; options of ``data prepare``.

    Attributes:
        split_by: "example" divides each user's examples, "user" assigns whole users.
        train_fraction: Fraction for train, above 0 to 1; every user keeps at least one example.
        val_fraction: Fraction for val, 0 or more; what both leave is test.
        split_seed: Seed of all that is random here.
        min_examples: Users with fewer examples, over all splits together, are dropped and counted.
        user_fraction: Fraction of the users that is kept, of those with enough examples.
        num_users: The same as a number; None keeps the fraction.
        data_fraction: Users are drawn until they have this fraction of the examples, as LEAF's
            scripts sample; above 0 to 1.
        partition: "natural" leaves examples with the users who have them; "iid" then assigns each
            split's examples anew, in equal shares, to artificial users.
        iid_users: Artificial users; None for as many as there are natural ones.

    The fractions and ``split_by`` are for data that are not split as published; given for others
    they are refused, and so is a seed of which nothing would depend.
    """

    split_by: SplitBy = "example"
    train_fraction: float = Field(default=0.8, gt=0, le=1)
    val_fraction: float = Field(default=0.1, ge=0, lt=1)
    split_seed: int = Field(default=0, ge=0)
    min_examples: int = Field(default=0, ge=0)
    user_fraction: float = Field(default=1.0, gt=0, le=1)
    num_users: int | None = Field(default=None, ge=1)
    data_fraction: float = Field(default=1.0, gt=0, le=1)
    partition: Literal["natural", "iid"] = "natural"
    iid_users: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        check_fractions(self.train_fraction, self.val_fraction)
        given = [name for name in _SAMPLING if name in self.model_fields_set]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} each say how many users are kept; give one of them"
            )
        if self.iid_users is not None and self.partition != "iid":
            raise ValueError(
                f"iid_users {self.iid_users} is for artificial users, but partition is "
                f"'{self.partition}'; give partition=iid too, or leave iid_users out"
            )
        return self

    @property
    def samples_users(self) -> bool:
        """Whether fewer users than there are may be kept by a draw."""
        return self.num_users is not None or min(self.user_fraction, self.data_fraction) < 1

    @property
    def draws(self) -> bool:
        """Whether something beside a split is drawn."""
        return self.samples_users or self.partition == "iid"
