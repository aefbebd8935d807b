"""Shards of a light executor stay at home when a batch is held up, leave in an overload, and come home after it."""

from __future__ import annotations

import pytest
from paced_job import BALANCE_SECONDS, HOME, OTHER, SHARDS, PacedJob, steady, step

from dask_elastic.executor import executor_parts
from dask_elastic.executor.cores import Cores
from dask_elastic.executor.measures import Measures
from dask_elastic.planning.light_load import FIRST_PATIENCE

SEEDS = range(4)


def held_up(seed, stalls, rate=100.0, each=0.001):
    """Run a light job for seven seconds, in which batches are held up."""
    job = PacedJob(steady(rate), steady(each), stalls, phase=0.02 + 0.12 * seed, seed=seed)
    return job.run(7.0)


@pytest.mark.parametrize(
    "stalls",
    [{4.0: 1.0}, {0.0: 0.3}, {0.0: 1.0}, {3.0: 0.6, 5.0: 0.6}, {4.0: 0.1, 4.01: 0.1, 4.02: 0.1}],
    ids=["one second", "at the start", "one second at the start", "twice", "three in a row"],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_that_are_held_up_send_no_shard_away(seed, stalls):
    job = held_up(seed, stalls)
    assert job.moves == job.away == 0


def delay(job, since=4.0, until=12.0):
    """Return the seconds from the overload until the first shard is away."""
    job.run(since)
    assert job.away == 0
    found = job.first_away(since, until)
    assert found is not None, "no shard has left"
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_shards_leave_at_the_next_look_when_many_rows_wait(seed):
    job = PacedJob(step(4.0, 100.0, 3_000.0), steady(0.001), phase=0.02 + 0.12 * seed, seed=seed)
    # A look directly after the change finds few rows waiting.
    assert delay(job) <= 1.5 * BALANCE_SECONDS


@pytest.mark.parametrize("each", [0.005, 0.02])
@pytest.mark.parametrize("seed", SEEDS)
def test_shards_leave_within_four_looks_when_rows_become_expensive(seed, each):
    job = PacedJob(steady(100.0), step(4.0, 0.001, each), phase=0.02 + 0.12 * seed, seed=seed)
    assert delay(job) <= 4 * BALANCE_SECONDS


@pytest.mark.parametrize("seed", SEEDS)
def test_shards_leave_within_three_looks_of_a_job_that_starts_in_an_overload(seed):
    job = PacedJob(steady(2_000.0), steady(0.001), phase=0.02 + 0.12 * seed, seed=seed)
    assert delay(job, since=0.5) <= 3 * BALANCE_SECONDS


@pytest.mark.parametrize("seed", SEEDS)
def test_shards_come_home_once_after_an_overload(seed):
    def rate(now):
        return 2_000.0 if 4.0 <= now < 8.0 else 100.0

    job = PacedJob(rate, steady(0.001), phase=0.02 + 0.12 * seed, seed=seed).run(8.0)
    assert job.away > SHARDS // 4
    # The rows that had to wait are processed, and few shards move to balance what is left.
    job.run(12.0 + FIRST_PATIENCE)
    assert job.away == 0
    job.run(40.0)
    assert job.away == 0
    home = [move.shard for move in job.executor.finished_moves() if move.target == 0 and move.ended > 10.0]
    assert len(home) == len({*home}) > SHARDS // 4
    assert job.moves <= 2 * len(home) + 4
    assert job.done >= job.sent - 5


@pytest.mark.parametrize("seed", SEEDS)
def test_shards_of_a_light_job_that_starts_on_two_nodes_come_home(seed):
    job = PacedJob(steady(100.0), steady(0.001), first={HOME: 1, OTHER: 1}, phase=0.1 * seed + 0.05, seed=seed)
    job.run(0.6)
    assert job.away > 0
    job.run(3.0 + FIRST_PATIENCE)
    assert job.away == 0


def test_load_that_comes_and_goes_moves_shards_ever_more_rarely():
    job = PacedJob(lambda now: 800.0 if now % 20.0 < 10.0 else 50.0, steady(0.001))
    returns, before = 0, 0
    for second in range(1, 161):
        job.run(float(second))
        returns += before > 0 and job.away == 0
        before = job.away
    # Eight cycles: the load is low for ten seconds each time.
    assert returns == 1


def test_no_shard_comes_home_without_a_bound():
    job = PacedJob(steady(100.0), steady(0.001), first={HOME: 1, OTHER: 1}, light=0.0).run(20.0)
    assert job.away > 0


def load_of_the_last_second(monkeypatch):
    """The load is that of measured work, in which one batch counts for its second."""
    monkeypatch.setattr(Measures, "lasting_load", lambda self, waiting: float(self.loads.loads(self.loads_read).sum()))
    looked = executor_parts.ExecutorParts._looked

    def look(self, now):
        self.measures.loads_read = now
        return looked(self, now)

    monkeypatch.setattr(executor_parts.ExecutorParts, "_looked", look)


def test_stall_is_found_if_the_load_is_that_of_the_last_second(monkeypatch):
    load_of_the_last_second(monkeypatch)
    assert all(held_up(seed, {4.0: 1.0}).moves > 0 for seed in SEEDS)


def test_shards_stay_away_if_nothing_brings_them_home(monkeypatch):
    monkeypatch.setattr(Cores, "_gathered", lambda self, loads, owner, takers: [])
    job = PacedJob(steady(100.0), steady(0.001), first={HOME: 1, OTHER: 1}).run(30.0)
    assert job.away > 0
