"""Elasticutor, section 3.1: balance within an executor, and a case in which the paper's own rule stops too early."""

from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.planning import balance

THRESHOLD = 1.2


def imbalance(load, owner, tasks):
    sums = np.array([load[owner == task].sum() for task in tasks])
    return sums.max() / sums.mean()


def after(load, owner, tasks):
    result = owner.copy()
    for move in balance(load, owner, tasks, THRESHOLD):
        result[move.shard] = move.target
    return result


def stuck_by_the_papers_rule(load, owner, tasks):
    """Whether no single move lowers the imbalance, though it is above the threshold."""
    now = imbalance(load, owner, tasks)
    for shard in range(len(load)):
        for target in tasks:
            trial = owner.copy()
            trial[shard] = target
            if imbalance(load, trial, tasks) < now:
                return False
    return now > THRESHOLD


def test_empty_task_gets_shards_of_two_equally_loaded_tasks():
    load, owner, tasks = np.full(12, 1.0), np.repeat([0, 1], 6), [0, 1, 2]
    assert stuck_by_the_papers_rule(load, owner, tasks)
    balanced = after(load, owner, tasks)
    assert np.bincount(balanced).tolist() == [4, 4, 4]
    assert int((balanced != owner).sum()) == 4


@pytest.mark.parametrize("shards_per_task", [4, 8])
@pytest.mark.parametrize("tasks", [2, 4, 8, 16])
def test_four_shards_per_task_suffice_for_balance(shards_per_task, tasks):
    # "A reasonable number of shards, e.g. 4 or 8 times the number of tasks, achieves good balancing quality."
    random = np.random.default_rng(tasks * 100 + shards_per_task)
    for _ in range(10):
        load = random.uniform(0.5, 1.5, tasks * shards_per_task)
        owner = random.integers(0, tasks, len(load))
        assert imbalance(load, after(load, owner, range(tasks)), range(tasks)) <= THRESHOLD


def test_hot_shards_of_one_task_are_spread():
    # Section 5 shuffles the frequencies of the keys; here the hot shards all sit in one task.
    load = np.sort(1.0 / np.arange(1, 129) ** 0.5)[::-1].copy()
    owner = np.repeat(np.arange(8), 16)
    assert imbalance(load, owner, range(8)) > 2
    balanced = after(load, owner, range(8))
    assert imbalance(load, balanced, range(8)) <= THRESHOLD
    assert int((balanced != owner).sum()) < 64
