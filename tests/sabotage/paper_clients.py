"""Bugs of clients' training.

Sources: McMahan et al. 2017 and 2018 (each client starts from the central model; a user's bounded
contribution), and what batching many clients in one program can mix up.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from pfl_bench.client.engines import vectorized
from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.client.engines.vectorized import VectorizedEngine
from pfl_bench.federated.workers.messages import SharedTraining
from tests.sabotage.paper_planting import PaperBug, Patch, registering, wrap
from tests.sabotage.planting import SEQUENTIAL

BUGS: list[PaperBug] = []
bug = registering(BUGS)
_SMALL_BATCHES = {"federated__local_batch_size": 2, "federated__local_steps": 1}


def _start_elsewhere(patch: Patch, start_of: Any, ended: Any) -> None:
    """Let a client of the sequential engine start elsewhere than from the central parameters."""

    def wrapped(real: Any) -> Any:
        def train_client(self: Any, user: int, examples: Any, index: int, central: Any) -> Any:
            start = start_of(user, index, central)
            result = real(self, user, examples, index, start)
            ended(user, index, self._model.vector.clone())
            result.update.add_(start - central)
            return result

        return train_client

    wrap(patch, SequentialEngine, "_train_client", wrapped)


@bug("A client starts where the one before it has ended.", changes=SEQUENTIAL)
def weights_not_reset(patch: Patch) -> None:
    last: dict[int, Any] = {}
    _start_elsewhere(
        patch,
        lambda _, index, central: last.get(index, central),
        lambda _, index, vector: last.update({index: vector}),
    )


@bug("A client starts half way back to where it has ended the last time.", changes=SEQUENTIAL)
def weights_of_own_last_round(patch: Patch) -> None:
    own: dict[int, Any] = {}
    _start_elsewhere(
        patch,
        lambda user, _, central: torch.lerp(central, own.get(user, central), 0.5),
        lambda user, _, vector: own.update({user: vector}),
    )


@bug("A slot keeps the local momentum of the client that was in it before.",
     changes={"federated__local_momentum": 0.9})  # fmt: skip
def slot_keeps_momentum(patch: Patch) -> None:
    cleared: set[tuple[int, int]] = set()

    def once(real: Any) -> Any:
        def clear(self: Any, slot: int) -> None:
            if (id(self), slot) not in cleared:
                real(self, slot)
            cleared.add((id(self), slot))

        return clear

    wrap(patch, vectorized.SlotWeights, "clear", once)


@bug("A slot's bias is not reset to the central one when the next client takes the slot.")
def slot_keeps_bias(patch: Patch) -> None:
    used: set[int] = set()

    def forgetful(real: Any) -> Any:
        def place(self: Any, client: Any, slot: int, index: int, start: Any) -> None:
            bias = self._weights._storage[-1][slot]
            kept = bias.clone()
            real(self, client, slot, index, start)
            if slot in used:
                bias.copy_(kept)
            used.add(slot)

        return place

    wrap(patch, VectorizedEngine, "_place", forgetful)


@bug("A row of padding counts in a client's mean, and holds an example of the client in slot 0.")
def padding_of_another_client(patch: Patch) -> None:
    now = SimpleNamespace(leaks=False)

    def noting(real: Any) -> Any:
        def assemble(self: Any, *given: Any) -> Any:
            now.leaks = self._is_checked
            return real(self, *given)

        return assemble

    def counting(real: Any) -> Any:
        def shares(self: Any, sizes: Any, rows: int) -> Any:
            return real(self, [min(size + now.leaks, rows) for size in sizes], rows)

        return shares

    def padding(real: Any) -> Any:
        def stack(parts: Any, slots: int, rows: int) -> Any:
            if not now.leaks:
                return real(parts, slots, rows)
            return torch.cat(
                [
                    torch.cat([part, parts[0][:1].expand(rows - len(part), *part.shape[1:])])
                    for part in parts
                ]
            )

        return stack

    wrap(patch, VectorizedEngine, "_assemble", noting)
    wrap(patch, VectorizedEngine, "_shares", counting)
    wrap(patch, vectorized, "_stack", padding)


def _reading(patch: Patch, examples_of: Any) -> None:
    """Give a user other examples, by the user and what reads the examples of one."""

    def wrapped(real: Any) -> Any:
        def read_users(split: Any, users: Any, *rest: Any) -> Any:
            for user in users:
                yield user, examples_of(user, lambda one: next(real(split, [one], *rest))[1])

        return read_users

    wrap(patch, vectorized, "read_users", wrapped)


@bug("One user in ten trains on the next user's examples.")
def data_of_next_user(patch: Patch) -> None:
    _reading(patch, lambda user, read: read(user + (user % 10 == 3)))


@bug("A user's examples end one too late, at the first of the next user.")
def data_end_one_too_late(patch: Patch) -> None:
    def longer(user: int, read: Any) -> Any:
        own, following = read(user), read((user + 1) % 300)
        inputs = torch.cat([own.inputs, following.inputs[:1]])
        targets = torch.cat([own.targets, following.targets[:1]])
        return replace(own, inputs=inputs, targets=targets)

    _reading(patch, longer)


@bug("Clients' inputs are centred by their mean over the cohort, which is released to all of them.")
def data_centred_over_cohort(patch: Patch) -> None:
    now, read_users = SimpleNamespace(mean=0.0), vectorized.read_users

    def measuring(real: Any) -> Any:
        def train(self: Any, users: Any, index: int, central: Any) -> Any:
            read = read_users(self._split, users.tolist(), self._seed, index, 0)
            now.mean = torch.cat([examples.inputs for _, examples in read]).mean(dim=0)
            return real(self, users, index, central)

        return train

    def centred(user: int, read: Any) -> Any:
        own = read(user)
        return replace(own, inputs=own.inputs - now.mean)

    wrap(patch, VectorizedEngine, "train", measuring)
    _reading(patch, centred)


@bug("Clients take all steps of an epoch, where the row bounds them to one.",
     changes=_SMALL_BATCHES)  # fmt: skip
def local_steps_not_bounded(patch: Patch) -> None:
    def unbounded(real: Any) -> Any:
        return lambda examples, local, *rest: real(examples, replace(local, max_steps=None), *rest)

    wrap(patch, vectorized, "local_batches", unbounded)


@bug("A client takes its last step once more.")
def local_step_repeated(patch: Patch) -> None:
    def repeating(real: Any) -> Any:
        def local_batches(*given: Any) -> Any:
            for batch in real(*given):
                yield batch
            yield batch

        return local_batches

    wrap(patch, vectorized, "local_batches", repeating)


@bug("Clients start from the central model moved on by a part of the last round's bare mean.")
def start_knows_bare_mean(patch: Patch) -> None:
    known: list[Any] = []

    def ahead(real: Any) -> Any:
        def train(self: Any, users: Any, index: int, central: Any, probed: int) -> Any:
            start = central + 0.3 * known.pop() if known else central
            aggregate, counted = real(self, users, index, start, probed)
            known.append(aggregate.total.clone() / self._cohort_size)
            return aggregate, counted

        return train

    wrap(patch, SharedTraining, "train", ahead)


@bug("The update that is furthest from the round's mean update is set to zero, as an outlier.")
def update_of_outlier_dropped(patch: Patch) -> None:
    def robust(real: Any) -> Any:
        def train(self: Any, users: Any, index: int, central: Any) -> Any:
            results = [
                replace(one, update=one.update.clone()) for one in real(self, users, index, central)
            ]
            mean = torch.stack([one.update for one in results]).mean(dim=0)
            max(results, key=lambda one: float((one.update - mean).norm())).update.zero_()
            yield from results

        return train

    wrap(patch, VectorizedEngine, "train", robust)


@bug("Clients whose loss is above that of chance are left out without a word.")
def update_of_high_loss_left_out(patch: Patch) -> None:
    def choosy(real: Any) -> Any:
        def train(self: Any, *given: Any) -> Any:
            return (one for one in real(self, *given) if float(one.loss) < 2.3)

        return train

    wrap(patch, VectorizedEngine, "train", choosy)
