"""The virtual clock of `benchmarks/dynamics_virtual.py`: links, state that travels, and what each paradigm does."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dask_elastic.planning.balance import balance

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import dynamics_virtual as virtual
from _network import HOP, Costs, Network
from _virtual_options import Options
from dynamics import shard_shares

sys.path.pop(0)

SECONDS, KEYS = 4, 20
COSTS = replace(virtual.COSTS, bandwidth=125e6, row_bytes=136, shard_bytes=32 * 1024)
CLUSTER = Options(
    nodes=2,
    threads=2,
    executors=2,
    shards=32,
    instances=2,
    batch_rows=64,
    balance_threshold=1.2,
    control_period=0.5,
    inbox_time=0.02,
    rate=3000.0,
    costs=COSTS,
)


def run(paradigm, options=CLUSTER):
    return virtual.run(KEYS, 30, 0, SECONDS, options, paradigm)


@pytest.fixture(scope="module")
def jobs():
    return {paradigm: run(paradigm) for paradigm in ("executor-centric", "one-by-one", "synchronised", "progressive")}


def test_messages_share_the_links_of_their_nodes():
    network = Network(3, Costs(bandwidth=1e6))
    assert network.arrival(0.0, 0, 1, 500_000) == 0.5 + HOP
    # Behind the first one on the link out of node 0, then behind the second one on the link into node 2.
    assert network.arrival(0.0, 0, 2, 500_000) == 1.0 + HOP
    assert network.arrival(0.0, 1, 2, 500_000) == 1.5 + HOP
    # Neither link into node 0 nor out of node 2 was used, and nothing leaves a node for itself.
    assert network.arrival(0.0, 2, 0, 500_000) == 0.5 + HOP
    assert network.arrival(0.3, 1, 1, 500_000) == 0.3


def test_nodes_handle_one_message_at_a_time():
    network = Network(2, Costs())
    assert [network.handled(0.0, 0, 0.1), network.handled(0.05, 0, 0.1), network.handled(0.05, 1, 0.1)] == [
        0.1, 0.2, pytest.approx(0.15)
    ]  # fmt: skip
    assert network.handled(0.0, 0, 0.0) == 0.0


def test_runs_are_repeatable(jobs):
    for paradigm in ("executor-centric", "progressive"):
        again = run(paradigm)
        assert again.done == jobs[paradigm].done
        assert again.network.state_bytes == jobs[paradigm].network.state_bytes


def test_rows_are_processed_in_time_and_never_faster_than_cores_can(jobs):
    for paradigm, job in jobs.items():
        at, rows, waited = np.array(job.done).reshape(-1, 3).T
        busy = np.histogram(at, np.arange(SECONDS + 1), weights=rows)[0] * CLUSTER.service / CLUSTER.cores
        # One batch of each core may have begun before its second.
        assert busy.max() <= 1 + CLUSTER.inbox_time, paradigm
        assert busy[1:].mean() >= 0.5, paradigm
        assert waited.min() >= CLUSTER.service, paradigm


@pytest.mark.parametrize("paradigm", ["one-by-one", "synchronised", "progressive"])
def test_groups_have_one_owner_after_their_moves(jobs, paradigm):
    job = jobs[paradigm]
    assert job.ended
    if job._move is None:
        for index, executor in enumerate(job.executors):
            assert executor.owned == {*job.table.owned_by(index)}


def test_the_baseline_of_the_paper_synchronises_for_each_group(jobs):
    moves = jobs["one-by-one"].ended
    assert {(move.strategy, move.groups) for move in moves} == {("synchronised", 1)}
    assert len(moves) > len(jobs["synchronised"].ended)
    # All instances pause, so that no two moves overlap.
    assert sum(move.pause for move in moves) < SECONDS


def test_reshuffles_take_about_fifty_reassignments_in_the_cluster_of_the_paper():
    cores, groups = 256, 8_192
    owner = np.arange(groups) * cores // groups
    counts = []
    for epoch in range(6):
        load = shard_shares(10_000, epoch, 1, groups).ravel()
        plan = balance(load, owner, range(cores), threshold=1.2)
        counts.append(len(plan))
        owner[[move.shard for move in plan]] = [move.target for move in plan]
    # The first one begins with groups in order, which were never balanced.
    assert counts[0] == 90
    assert (min(counts[1:]), max(counts[1:])) == (45, 59)


def test_plans_end_with_their_last_move(jobs):
    job = jobs["one-by-one"]
    seconds, groups = job.repartitionings[0]
    assert groups == len(job.ended[:groups])
    # The order takes a moment before the first move begins, and the moves follow each other at once.
    assert seconds == pytest.approx(sum(move.seconds for move in job.ended[:groups]), abs=0.1)


def test_state_travels_between_nodes_only(jobs):
    groups = sum(move.groups for move in jobs["synchronised"].ended)
    travelled = jobs["synchronised"].network.state_bytes / COSTS.shard_bytes
    assert 0 < travelled <= groups
    alone = run("synchronised", replace(CLUSTER, nodes=1, threads=4))
    assert alone.ended
    assert alone.network.state_bytes == 0


def test_state_of_shards_travels_to_cores_of_other_nodes_and_back():
    job = virtual.run(6, 0, 0, SECONDS, replace(CLUSTER, rate=2600.0), "executor-centric")
    across = sum(executor.moves.finished_across for executor in job.executors)
    assert across > 0
    # Each of these moves sends a shard one way, and perhaps once more what has changed since.
    assert across <= job.network.state_bytes / COSTS.shard_bytes <= 2 * across + 1


def test_slow_links_let_groups_wait_for_their_state(jobs):
    slow = run("synchronised", replace(CLUSTER, costs=replace(COSTS, bandwidth=1e6)))
    first, slower = jobs["synchronised"].ended[0], slow.ended[0]
    assert slower.groups == first.groups
    # At least one of the groups goes to another node.
    assert slower.pause - first.pause > 0.95 * COSTS.shard_bytes / 1e6


def test_sources_with_a_rate_deliver_it_and_count_waiting_from_when_rows_are_due():
    possible, *_ = virtual.bounds(KEYS, 0, CLUSTER)
    job = virtual.run(KEYS, 0, 0, SECONDS, replace(CLUSTER, rate=0.5 * possible), "executor-centric")
    rows, waited = virtual.counted(job, 1.0)
    assert rows.sum() / (SECONDS - 1) == pytest.approx(0.5 * possible, rel=0.05)
    assert job.lag == pytest.approx(0.0, abs=0.1)
    late = virtual.run(KEYS, 0, 0, SECONDS, replace(CLUSTER, rate=3 * possible), "executor-centric")
    assert late.lag > 1.0
    assert float(virtual.counted(late, 1.0)[1].max()) > 1.0
    assert float(np.average(waited, weights=rows)) < 0.1
