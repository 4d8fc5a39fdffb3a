"""Assigning clients into shards, and the order in which shards' sums are added."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.client.batches import num_used
from pfl_bench.federated.shards import (
    MAX_SHARDS,
    Node,
    PairwiseReduction,
    assign_clients,
    expected_costs,
    expected_work,
    num_shards,
    shards_of_rank,
)
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.types import LocalTraining
from privacy import aggregate as aggregates
from privacy.aggregate import Aggregate
from privacy.clipping import ClipOutcome
from tests.helpers import make_config, parts_of

CPU = torch.device("cpu")
P = 5

costs_of_clients = st.lists(st.floats(0.5, 1e4), max_size=40)


@given(costs_of_clients, st.integers(1, MAX_SHARDS))
def test_every_client_is_dealt_once_and_the_deal_is_a_pure_function(
    costs: list[float], shards: int
) -> None:
    users = np.arange(len(costs), dtype=np.int64) * 7 + 3
    assigned = assign_clients(users, np.array(costs), shards)
    assert len(assigned) == shards
    assert sorted(np.concatenate(assigned).tolist()) == users.tolist()
    for shard in assigned:
        assert shard.tolist() == sorted(shard.tolist())
    again = assign_clients(users.copy(), np.array(costs), shards)
    assert [shard.tolist() for shard in again] == [shard.tolist() for shard in assigned]


@given(costs_of_clients, st.integers(1, 6))
def test_halves_of_each_level_are_balanced(costs: list[float], levels: int) -> None:
    array = np.array(costs)
    assigned = assign_clients(np.arange(len(costs), dtype=np.int64), array, 1 << levels)
    while len(assigned) > 1:
        for left, right in zip(assigned[::2], assigned[1::2], strict=True):
            fuller, other = sorted((left, right), key=lambda shard: -array[shard].sum())
            if len(fuller):
                # It had no more than the other when it got its last, cheapest client.
                before = array[fuller].sum() - array[fuller].min()
                assert before <= array[other].sum() * (1 + 1e-12)
        assigned = [
            np.concatenate(pair) for pair in zip(assigned[::2], assigned[1::2], strict=True)
        ]


@pytest.mark.parametrize("shards", [3, 5, 6, 12, 48])
def test_numbers_of_shards_that_are_no_power_of_two_are_balanced_too(shards: int) -> None:
    costs = np.random.default_rng(shards).lognormal(0, 1, 40 * shards)
    loads = [costs[shard].sum() for shard in assign_clients(np.arange(len(costs)), costs, shards)]
    assert max(loads) <= 1.05 * costs.sum() / shards


def test_a_deal_worked_by_hand() -> None:
    costs = np.array([3.0, 7.0, 5.0, 4.0, 6.0, 9.0])
    assigned = assign_clients(np.arange(6, dtype=np.int64), costs, 4)
    # Between halves: 9 | 7, 6 right (13), 5 left (14), 4 right (17), 3 left (17). Left: 9 | 5 3.
    # Right: 7 | 6 4.
    assert [shard.tolist() for shard in assigned] == [[5], [0, 2], [1], [3, 4]]
    # Between one shard and two: 9 | 7 (3.5 a shard), 6 (6.5), 5 (9), then 4 left (13), and the 3 to
    # the right, whose shards get 7 and 6, then 5 beside 6, 3 beside 7.
    assigned = assign_clients(np.arange(6, dtype=np.int64), costs, 3)
    assert [shard.tolist() for shard in assigned] == [[3, 5], [0, 1], [2, 4]]


def test_clients_of_equal_costs_are_dealt_in_their_order() -> None:
    users = np.arange(32, dtype=np.int64)
    left, right = assign_clients(users, np.array([1.0, 2.0] * 16), 2)
    assert left.tolist() == [user for user in range(32) if user % 4 < 2]
    assert right.tolist() == [user for user in range(32) if user % 4 >= 2]


def test_a_client_that_is_half_of_a_round_has_a_process_to_itself() -> None:
    costs = np.array([1.0, 2.0, 16.0, 3.0, 4.0, 5.0, 1.0])
    shards = assign_clients(np.arange(7, dtype=np.int64), costs, 8)
    for rank in range(2):
        share = shards_of_rank(rank, 2, 8)
        assert sum(costs[shards[shard]].sum() for shard in share) == 16.0


@pytest.mark.parametrize(("processes", "speed"), [(2, 1.94), (4, 2.82)])
def test_processes_are_as_fast_on_skewed_cohorts_as_the_page_says(
    processes: int, speed: float
) -> None:
    """Ten users skewed as Reddit's comments; no assignment beats the largest user's own time."""
    rng = np.random.default_rng(0)
    speeds = []
    for costs in rng.lognormal(0, 1.24, (200, 10)):
        shards = assign_clients(np.arange(10), costs, num_shards(10))
        shares = [shards_of_rank(rank, processes, len(shards)) for rank in range(processes)]
        longest = max(sum(costs[shards[shard]].sum() for shard in share) for share in shares)
        speeds.append(costs.sum() / longest)
    assert np.mean(speeds) == pytest.approx(speed, rel=0.03)


@given(st.integers(1, 200), st.integers(1, MAX_SHARDS))
def test_processes_share_all_shards_out_in_order(size: int, shards: int) -> None:
    shares = [shards_of_rank(rank, size, shards) for rank in range(size)]
    assert [shard for share in shares for shard in share] == list(range(shards))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 200) | st.integers(1, 200_000))
def test_shards_are_a_power_of_two_of_about_two_clients_each(cohort_size: int) -> None:
    shards = num_shards(cohort_size)
    assert shards.bit_count() == 1
    assert 1 <= shards <= MAX_SHARDS
    assert shards == MAX_SHARDS or cohort_size // 2 <= shards < max(9, cohort_size)
    # A few processes have work however small the cohort is.
    assert shards >= min(cohort_size, 8)


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        # Steps of 10 and of 3 examples: 13 + 2 * 5 + 20.
        (LocalTraining(1, 10, 0.1), 43.0),
        # Twice as many passes: 26 + 4 * 5 + 20; through their borders 26 + 3 * 5 + 20.
        (LocalTraining(2, 10, 0.1), 66.0),
        (LocalTraining(2, 10, 0.1, batches_across_epochs=True), 61.0),
        # No more than 2 steps of 10: 20 + 2 * 5 + 20.
        (LocalTraining(5, 10, 0.1, max_steps=2), 50.0),
        # One step of a part: 4 of 13, and 1.
        (LocalTraining(1, 10, 0.1, batch_fraction=0.3), 5.0),
    ],
)
def test_costs_are_what_the_steps_come_to(local: LocalTraining, expected: float) -> None:
    assert expected_costs(np.array([13]), local).tolist() == [expected]


@pytest.mark.parametrize("local_steps", [None, 1, 3, 5])
@pytest.mark.parametrize("batches", ["per_epoch", "across_epochs"])
def test_the_work_that_is_expected_is_what_a_round_of_everybody_does(
    local_steps: int | None, batches: str, tmp_path: Path
) -> None:
    local = {"federated__local_steps": local_steps, "federated__local_batches": batches}
    everybody = {"federated__sampling": "full", "federated__cohort_size": 60}
    more = {"federated__num_rounds": 1, "federated__local_epochs": 3}
    parts = parts_of(make_config("federated", **local, **everybody, **more))
    trainer = FederatedTrainer(parts, tmp_path, lambda text: None)
    expected, done = trainer.expected_work(), trainer.advance(1)
    assert expected.steps == pytest.approx(done["systems/steps"])
    assert expected.examples == pytest.approx(done["systems/examples"])


def test_the_bytes_that_are_expected_are_those_of_all_rounds(tmp_path: Path) -> None:
    changes = {"federated__sampling": "full", "federated__cohort_size": 60}
    compression = {"name": "top_k", "k": 7}
    config = make_config("federated", federated__compression=compression, **changes)
    expected = FederatedTrainer(parts_of(config), tmp_path, lambda text: None).expected_work()
    # Of 650 parameters; 7 values in 32 bits, and their places in 10.
    rounds = 6 * 60
    assert (expected.bytes_down, expected.bytes_up) == (rounds * 650 * 4, rounds * 37)


@given(st.integers(1, 200), st.floats(0.01, 1.0))
def test_a_step_of_a_part_has_the_examples_that_it_trains_on(size: int, part: float) -> None:
    local = LocalTraining(1, 10, 0.1, batch_fraction=part)
    assert expected_work(np.array([size]), local)[1].tolist() == [num_used(size, local)]


def client(number: int) -> tuple[torch.Tensor, ClipOutcome]:
    """An update whose sums depend on the order of additions."""
    rng = np.random.default_rng(number)
    update = torch.from_numpy(rng.normal(size=P) * 10.0 ** rng.integers(-4, 5)).float()
    return update, ClipOutcome(float(number), number % 3 > 0, number % 7 > 0, float(number))


def hand_sum(numbers: list[int], own_noise: bool) -> Aggregate | None:
    """The sum of a shard of clients; None without any."""
    if not numbers:
        return None
    aggregate = Aggregate.zeros(P, CPU, 100)
    for number in numbers:
        update, outcome = client(number)
        aggregate.total += update
        aggregate.count(outcome)
    if own_noise:
        aggregate.clipped_total = aggregate.total * 0.5
    return aggregate


def copied(node: Node) -> Node:
    """What arrives of a node that another process has sent."""
    aggregate = node.aggregate
    if aggregate is not None:
        clipped = aggregate.clipped_total
        aggregate = replace(
            aggregate,
            total=aggregate.total.clone(),
            clipped_total=None if clipped is None else clipped.clone(),
        )
    return Node(node.level, node.place, aggregate)


def summed(
    shards: list[list[int]], shares: list[range], own_noise: bool, largest: list[int]
) -> Aggregate | None:
    """The sum of shards that several processes have summed, as the lead adds it up."""
    lead = PairwiseReduction()
    for rank, share in enumerate(shares):
        tree = PairwiseReduction() if rank else lead
        for place in share:
            tree.push(Node(0, place, hand_sum(shards[place], own_noise)))
            largest[0] = max(largest[0], len(tree.nodes))
        for node in tree.nodes if rank else []:
            lead.push(copied(node))
            largest[0] = max(largest[0], len(lead.nodes))
    return lead.sum()


def same(one: Aggregate | None, other: Aggregate | None) -> bool:
    """Whether two sums are the same bits, and all numbers beside them equal."""
    if one is None or other is None:
        return one is other
    vectors = ("total", "clipped_total")
    if any(
        (getattr(one, name) is None) != (getattr(other, name) is None)
        or (
            getattr(one, name) is not None
            and getattr(one, name).numpy().tobytes() != getattr(other, name).numpy().tobytes()
        )
        for name in vectors
    ):
        return False
    empty = torch.zeros(0)
    bare = [replace(sum_, total=empty, clipped_total=None) for sum_ in (one, other)]
    names = [name for name in Aggregate.__dataclass_fields__ if name not in vectors]
    return all(getattr(bare[0], name) == getattr(bare[1], name) for name in names)


@given(st.data(), st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.booleans(), st.booleans())
def test_any_split_into_processes_gives_the_same_bits(
    data: st.DataObject, count: int, own_noise: bool, wide: bool
) -> None:
    # Shards without clients, too.
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    ends = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    shards = [list(range(a, b)) for a, b in pairwise(ends)]
    with pytest.MonkeyPatch.context() as patch:
        if wide:
            patch.setattr(aggregates, "MANY_CLIENTS", 10)
        largest = [0]
        alone = summed(shards, [range(count)], own_noise, largest)
        # At most one sum a level waits in one process.
        assert largest[0] <= count.bit_length()
        assert (alone is None) == (not ends[-1])
        if alone is not None:
            assert alone.total.dtype == (torch.float64 if wide else torch.float32)
            finite = sum(client(number)[1].finite for number in range(ends[-1]))
            assert alone.num_contributions == finite
        for size in range(2, 10):
            shares = [shards_of_rank(rank, size, count) for rank in range(size)]
            assert same(summed(shards, shares, own_noise, largest), alone)
        cuts = data.draw(st.lists(st.integers(0, count), max_size=8).map(sorted))
        shares = [range(a, b) for a, b in pairwise([0, *cuts, count])]
        assert same(summed(shards, shares, own_noise, largest), alone)
        # Of another process, all that cannot be added before what precedes it.
        assert largest[0] <= 2 * count.bit_length()


def test_the_order_of_additions_would_matter() -> None:
    """Else the test above could not fail."""
    vectors = [client(number)[0] for number in range(64)]
    one_by_one = torch.stack(vectors).cumsum(dim=0)[-1]
    tree = PairwiseReduction()
    for place in range(64):
        tree.push(Node(0, place, hand_sum([place], own_noise=False)))
    whole = tree.sum()
    assert whole is not None
    assert not torch.equal(whole.total, one_by_one)
    assert torch.allclose(whole.total, one_by_one, rtol=1e-4, atol=1.0)


def test_shards_that_are_no_power_of_two_are_added_from_the_first_on() -> None:
    tree = PairwiseReduction()
    for place in range(5):
        tree.push(Node(0, place, hand_sum([place], own_noise=False)))
    whole = tree.sum()
    vectors = [client(number)[0] for number in range(5)]
    expected = ((vectors[0] + vectors[1]) + (vectors[2] + vectors[3])) + vectors[4]
    assert whole is not None
    assert torch.equal(whole.total, expected)
    tree.clear()
    # No two sums of the next round share memory.
    sums = [tree.zeros(P, CPU, 100).total for _ in range(5)]
    assert len({total.data_ptr() for total in sums}) == 5


def test_memory_of_a_round_serves_the_next() -> None:
    tree = PairwiseReduction()
    seen = set()
    for _ in range(5):
        tree.clear()
        for place in range(16):
            vector = client(place)[0]
            if place < 8:
                aggregate = tree.zeros(P, CPU, 100)
                assert not aggregate.total.any()
                aggregate.total += vector
            else:
                aggregate = Aggregate(tree.hold(vector))
                assert torch.equal(aggregate.total, vector)
            seen.add(aggregate.total.data_ptr())
            tree.push(Node(0, place, aggregate))
        tree.sum()
    # One that is filled and one a level, whatever the rounds.
    assert len(seen) <= 5


def test_another_type_of_sum_is_held_in_memory_of_its_own() -> None:
    tree = PairwiseReduction()
    tree.push(Node(0, 0, tree.zeros(P, CPU, 100)))
    tree.clear()
    wide = torch.arange(P, dtype=torch.float64) / 3
    assert torch.equal(tree.hold(wide), wide)


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_neighbouring_shards_have_as_many_clients_as_others(processes: int) -> None:
    sizes = np.array([100] * 8 + [1] * 400)
    costs = sizes.astype(np.float64)
    shards = assign_clients(np.arange(len(sizes)), costs, 16)
    counts = [
        sum(len(shards[shard]) for shard in shards_of_rank(rank, processes, 16))
        for rank in range(processes)
    ]
    assert max(counts) - min(counts) <= 2 * len(sizes) / 16
    assert [sum(costs[shard].sum() for shard in shards[:8])] == pytest.approx([600.0], rel=0.02)
