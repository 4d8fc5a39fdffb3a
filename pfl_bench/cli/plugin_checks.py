"""The contract of plug-ins, checked on one's own: that they load, say what they are, and keep it.

What a run shows is checked by running: that its state is in checkpoints by killing and resuming it,
a mechanism's noise by the audit. The rest is asked of the modules and of what they build.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from pfl_bench import plugins
from pfl_bench.types import Examples, PluginError
from privacy.aggregate import Aggregate
from privacy.clipping import NORMS
from privacy.mechanism import Mechanism, NoiseScale

# What a user sends, in multiples of nothing: small, usual, huge, not a number.
_SIZES = (1e-3, 1.0, 1e6, float("nan"))
_ROUNDING = 1e-4
# Users with as many examples as another, who are compared with it.
_ALIKE = 1000
_BOUND = 0.5
Check = tuple[str, Callable[[], str]]


def module_checks(
    kind: plugins.PluginKind, name: str, given: BaseModel | None = None
) -> Iterator[Check]:
    """The checks of one plug-in that need no run: what each is called, and what makes it.

    A check gives what it found, or raises: ``SkippedError`` with a reason, anything else failed.
    The options ``given`` are those that a row has; None for the plug-in's defaults.
    """
    yield "loads", lambda: _loads(kind, name)
    if kind.has_options:
        yield "options", lambda: _options(kind, name)
    if kind is plugins.MECHANISM:
        yield "description", lambda: _description(name)
        yield "sensitivity", lambda: _sensitivity(name, given)
        yield "empty cohort", lambda: _empty_cohort(name, given)
    if kind is plugins.METRIC:
        yield "directions", lambda: _directions(name)
    if kind is plugins.TASK:
        yield "data", lambda: _data(name, given)


class SkippedError(Exception):
    """Raised where a check cannot be made, with the reason."""


def _loads(kind: plugins.PluginKind, name: str) -> str:
    module = plugins.load(kind, name)
    options = (module.Options,) if kind.has_options else ()
    for part in (module, *options, getattr(module, kind.function)):
        if not inspect.getdoc(part):
            what = getattr(part, "__qualname__", part.__name__)
            raise PluginError(f"{what} has no docstring; say what it is, and what it guarantees")
    return f"{module.__file__}"


def _options(kind: plugins.PluginKind, name: str) -> str:
    options = plugins.options_type(kind, name)
    wanted = {"extra": "forbid", "strict": True, "frozen": True}
    lacking = {
        key: value for key, value in wanted.items() if options.model_config.get(key) != value
    }
    if lacking:
        text = ", ".join(f"{key}={value!r}" for key, value in lacking.items())
        raise PluginError(f"model_config of Options lacks {text}: a typo in a row would be silent")
    return ", ".join(options.model_fields) or "none"


def _description(name: str) -> str:
    module = plugins.load(plugins.MECHANISM, name)
    described = getattr(module, "DESCRIPTION", None)
    if described is None:
        raise PluginError(
            "the module has no DESCRIPTION (privacy.description.Description), from which ledger, "
            "audit and statement know its noise"
        )
    words: str = described.words
    if not words or words.endswith("."):
        raise PluginError(f"DESCRIPTION.words is {words!r}; give a clause without a full stop")
    return words


def _sensitivity(name: str, given: BaseModel | None) -> str:
    """Neighbouring sums: one user more moves the sum by at most the bound."""
    options, mechanism = _built(name, given)
    # What the row asks for, where it names a bound; not what the mechanism makes of it.
    bound = getattr(options, "clip_norm", mechanism.clip_norm)
    if mechanism.description.randomizes_clients or bound is None:
        raise SkippedError("clients send noised reports, or nothing is clipped")
    norm_of = NORMS[mechanism.description.norm]
    generator, most = torch.Generator().manual_seed(2), 0.0
    for size in _SIZES:
        sums = (Aggregate.zeros(64), Aggregate.zeros(64))
        for _ in range(5):
            update = torch.randn(64, generator=generator)
            for aggregate in sums:
                mechanism.accumulate(aggregate, update.clone(), 1.0)
        mechanism.accumulate(sums[1], torch.randn(64, generator=generator) * size, 1.0)
        distance = norm_of(sums[1].total - sums[0].total)
        if not distance <= bound * (1 + _ROUNDING):
            raise PluginError(
                f"a user whose update is {size:g} times as large as others' moves the sum by "
                f"{distance:g}, but clip_norm is {bound:g}; clip in accumulate"
            )
        most = max(most, distance)
    return f"a user moves the sum by at most {most:.6g}, and the bound is {bound:g}"


def _empty_cohort(name: str, given: BaseModel | None) -> str:
    """A round without users is noised as any other."""
    _, mechanism = _built(name, given)
    if mechanism.description.randomizes_clients or not mechanism.is_private:
        raise SkippedError("clients send noised reports, or nothing is noised")
    released = mechanism.release(Aggregate.zeros(64), np.random.default_rng(2)).mean_update
    if not released.any():
        raise PluginError(
            "the release of an empty cohort has no noise, which shows that nobody took part; "
            "noise the sum in release, whatever it is"
        )
    return "noised"


def _built(name: str, given: BaseModel | None) -> tuple[BaseModel, Mechanism]:
    """A mechanism, and its options: those of a row, or the defaults."""
    options = given or _defaults(plugins.MECHANISM, name)
    noise = NoiseScale(1.0, 20, 20, 10)
    return options, plugins.build(plugins.MECHANISM, name, options, noise)


def _defaults(kind: plugins.PluginKind, name: str) -> BaseModel:
    """The options of a plug-in that no row names, all of which must have a default."""
    options = plugins.options_type(kind, name)
    given = {"clip_norm": _BOUND} if "clip_norm" in options.model_fields else {}
    lacking = [
        field
        for field, info in options.model_fields.items()
        if info.is_required() and field not in given
    ]
    if lacking:
        raise SkippedError(f"no row uses it, and {', '.join(lacking)} has no default")
    return options.model_validate(given)


def _directions(name: str) -> str:
    from pfl_bench.metrics import MetricDirections

    stated = MetricDirections.of([name])
    if not stated.headlines:
        raise PluginError("HEADLINES is empty; name the value that heads a table")
    lower = ", ".join(sorted(stated.lower)) or "none"
    return f"headlines {', '.join(stated.headlines)}; better when lower: {lower}"


def _data(name: str, given: BaseModel | None) -> str:
    """Splits are consistent, and the same options give the same data."""
    options = given or _defaults(plugins.TASK, name)
    task, again = (plugins.build(plugins.TASK, name, options) for _ in range(2))
    if task.facts.checksum != again.facts.checksum:
        raise PluginError(
            f"two builds of the same options have the checksums {task.facts.checksum} and "
            f"{again.facts.checksum}; draw from a stream of their own, and digest the content"
        )
    owners: dict[str, str] = {}
    for split_name in task.split_names:
        split = task.split(split_name)
        _check_split(split, split_name)
        found = [(user, owners.setdefault(user, split_name)) for user in split.client_ids()]
        shared = next((pair for pair in found if pair[1] != split_name), None)
        if shared and task.facts.split_by == "user":
            raise PluginError(
                f"user '{shared[0]}' is in the splits '{shared[1]}' and '{split_name}', and "
                "facts.split_by is 'user'; keep each user in one split, or say 'example'"
            )
    _check_apart([task.split(split_name) for split_name in task.split_names])
    return f"{', '.join(task.split_names)}; {task.facts.checksum[:20]}..."


def _check_apart(splits: list[Any]) -> None:
    """Nobody else has the examples of a split's largest user, if these are two or more."""
    for split in splits:
        largest = int(np.diff(split.offsets).argmax())
        own = _examples_of(split, largest)
        for other in splits if len(own) > 1 else ():
            for user in np.flatnonzero(np.diff(other.offsets) == len(own))[:_ALIKE].tolist():
                found = _examples_of(other, user)
                is_other = (other.name, user) != (split.name, largest)
                is_same = torch.equal(own.inputs, found.inputs)
                if is_other and is_same and torch.equal(own.targets, found.targets):
                    names = (split.client_ids()[largest], other.client_ids()[user])
                    raise PluginError(
                        f"user '{names[0]}' of split '{split.name}' and user '{names[1]}' of split "
                        f"'{other.name}' have the same {len(own)} examples, so that no user is a "
                        "unit of privacy, or a test is one of memory; give each to one user"
                    )


def _examples_of(split: Any, user: int) -> Examples:
    start, stop = split.offsets[user : user + 2].tolist()
    examples: Examples = split.read_range(start, stop)
    return examples


def _check_split(split: Any, name: str) -> None:
    offsets = np.asarray(split.offsets)
    ids = list(split.client_ids())
    if len(offsets) != split.num_users + 1:
        raise PluginError(
            f"split '{name}': offsets has {len(offsets)} numbers for {split.num_users} users; give "
            "one more than users"
        )
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != split.num_examples:
        raise PluginError(
            f"split '{name}': offsets must begin at 0, never fall, and end at num_examples"
        )
    if not len(set(ids)) == len(ids) == split.num_users:
        raise PluginError(
            f"split '{name}': client_ids gives {len(set(ids))} different names for "
            f"{split.num_users} users"
        )
    # The largest, because it has examples.
    user = int(np.diff(offsets).argmax())
    start, stop = int(offsets[user]), int(offsets[user + 1])
    own = split.read_range(start, stop)
    if len(own) != stop - start or len(own.targets) != stop - start:
        raise PluginError(
            f"split '{name}': read_range({start}, {stop}) gives {len(own)} inputs and "
            f"{len(own.targets)} targets; give one of each example"
        )
    chosen = split.read_examples(np.arange(start, stop), np.random.default_rng(0))
    if not torch.equal(chosen.targets, own.targets):
        raise PluginError(
            f"split '{name}': read_examples gives other targets of examples {start} to {stop} than "
            "read_range; both index the examples of all users"
        )
