"""Over how many tasks of a node an executor's shards are spread."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.planning.gathering import FIRST_PATIENCE, GAIN, LONGEST_PATIENCE, Gathering, Saturation
from dask_elastic.vocab.errors import PlanningError

LOOK = 0.5


@dataclass
class SaturatedNode:
    """Tasks of a node whose rows per second depend on how many of them have shards.

    Parameters
    ----------
    speeds : sequence of float
        Rows per second with one task, with two, and so on.
    most : int or None
        Tasks that get shards in the beginning.
    computing : float
        Share of their busy time for which tasks compute.
    arrivals : float
        Rows per second that arrive.
    noise : float
        Standard deviation of the rows per second between two looks, as a share.
    """

    speeds: tuple[float, ...]
    most: int | None = None
    computing: float = 0.5
    arrivals: float = np.inf
    noise: float = 0.0
    seed: int = 0
    now: float = 0.0
    rows: float = 0.0
    tried: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self):
        self.gathering = Gathering(self.most)
        self.random = np.random.default_rng(self.seed)
        self.tasks = len(self.speeds)
        self._before = self.takers

    @property
    def takers(self):
        """The tasks that have shards."""
        return min(self.gathering.most or self.tasks, self.tasks)

    def run(self, seconds):
        """Let it run; returns the rows per second."""
        began, end = self.rows, self.now + seconds
        while self.now < end:
            fastest = self.speeds[self.takers - 1]
            self.rows += min(fastest * max(self.random.normal(1, self.noise), 0), self.arrivals) * LOOK
            self.now += LOOK
            moving, self._before = self.takers != self._before, self.takers
            busy = min(1.0, self.arrivals / fastest)
            self.gathering.look(
                Saturation(int(self.rows), self.tasks, busy == 1, busy, self.computing, moving, self.now)
            )
            if self.takers != self._before:
                self.tried.append((self.now, self.takers))
        return (self.rows - began) / seconds


def test_one_task_gets_the_shards_if_it_is_faster_than_two():
    node = SaturatedNode((2_000.0, 1_000.0))
    assert node.run(60) > 1_800
    assert node.gathering.most == node.gathering.proven(node.now) == 1


def test_all_tasks_keep_their_shards_if_they_are_faster():
    node = SaturatedNode((1_000.0, 1_900.0))
    assert node.run(600) > 0.97 * 1_900
    assert node.gathering.most is None
    assert node.gathering.proven(node.now) is None


def test_all_tasks_get_shards_if_one_alone_was_assumed_to_be_enough():
    node = SaturatedNode((1_000.0, 2_000.0, 3_000.0, 4_000.0), most=1)
    node.run(20)
    assert node.gathering.most is None


def test_half_of_the_tasks_get_the_shards_if_they_are_the_fastest():
    node = SaturatedNode((1_000.0, 1_800.0, 2_500.0, 3_000.0, 2_600.0, 2_200.0, 1_900.0, 1_700.0))
    node.run(60)
    assert node.takers == 4


def test_what_fails_is_tried_ever_more_rarely():
    node = SaturatedNode((1_000.0, 1_900.0))
    node.run(3_600)
    trials = [now for now, takers in node.tried if takers == 1]
    waits = np.diff(trials)
    assert trials[0] == pytest.approx(FIRST_PATIENCE, abs=3 * LOOK)
    assert all(1.4 * before < after for before, after in pairwise(waits) if after < 500)
    assert waits[-1] == pytest.approx(LONGEST_PATIENCE, rel=0.05)


def test_nothing_is_tried_while_tasks_do_not_wait_for_each_other():
    node = SaturatedNode((1_000.0, 1_900.0), computing=0.95)
    node.run(600)
    assert not node.tried


def test_nothing_is_tried_while_logic_waits_for_something_else():
    node = SaturatedNode((1_000.0, 2_000.0), computing=0.02)
    node.run(600)
    assert not node.tried


def test_logic_that_waits_gets_all_tasks_without_a_trial_and_at_any_load():
    node = SaturatedNode((1_000.0, 2_000.0), most=1, computing=0.02, arrivals=100.0)
    node.run(2 * LOOK)
    assert node.gathering.most is None


def saturated(second, tasks, computing):
    """Return a look at saturated tasks."""
    return Saturation(10 * second, tasks, True, 1.0, computing, moving=False, now=float(second))


def test_logic_of_a_single_task_that_waits_gets_all_tasks_of_another_node():
    gathering = Gathering(most=1)
    gathering.look(saturated(0, tasks=1, computing=0.05))
    gathering.look(saturated(1, tasks=4, computing=None))
    assert gathering.most is None


def test_logic_that_waited_at_home_gets_all_tasks_where_it_is_not_measured():
    gathering = Gathering(most=4)
    gathering.look(saturated(0, tasks=4, computing=0.06))
    assert gathering.most == 4
    gathering.look(saturated(1, tasks=3, computing=None))
    assert gathering.most is None


def test_logic_of_a_single_task_that_computes_stays_with_one():
    gathering = Gathering(most=1)
    gathering.look(saturated(0, tasks=1, computing=0.9))
    gathering.look(saturated(1, tasks=4, computing=None))
    assert gathering.most == 1


def test_tasks_that_seem_to_wait_only_while_they_are_few_are_gathered_ever_more_rarely():
    node = SaturatedNode((2_000.0, 1_000.0))
    for _ in range(3_600):
        node.computing = 0.15 if node.takers == 1 else 0.4
        node.run(LOOK)
    assert 2 < len([takers for _, takers in node.tried if takers == 1]) < 12


def test_nothing_is_tried_without_saturation():
    node = SaturatedNode((2_000.0, 1_000.0), arrivals=900.0)
    node.run(600)
    assert not node.tried


def test_logic_that_changes_is_tried_again():
    node = SaturatedNode((2_000.0, 1_000.0))
    node.run(60)
    node.speeds = (2_000.0, 4_000.0)
    node.run(120)
    assert node.gathering.most is None


def proven_with_one_task():
    """Return a node that has found one task to be enough, and has lost the other one since."""
    node = SaturatedNode((2_000.0, 1_000.0), most=1)
    node.run(20)
    assert node.gathering.proven(node.now) == 1
    node.tasks = 1
    return node


def test_what_is_to_be_tried_again_is_not_proven():
    node = proven_with_one_task()
    node.run(LONGEST_PATIENCE)
    assert node.gathering.proven(node.now) is None


def test_what_cannot_be_tried_for_lack_of_rows_stays_proven():
    node = proven_with_one_task()
    node.arrivals = 1_500.0
    node.run(LONGEST_PATIENCE)
    assert node.gathering.proven(node.now) == 1
    node.arrivals = np.inf
    node.run(LOOK)
    assert node.gathering.proven(node.now) is None


def test_a_task_that_ends_during_a_trial_ends_the_trial():
    node = SaturatedNode((2_000.0, 3_000.0), most=1)
    while not node.tried:
        node.run(LOOK)
    assert node.takers == 2
    node.tasks = 1
    node.run(LOOK)
    assert node.gathering.most == 1


def test_shards_that_keep_moving_end_a_trial():
    gathering, now = Gathering(), 0.0
    while gathering.most is None:
        gathering.look(Saturation(int(1_000 * now), 2, True, 1.0, 0.5, False, now))
        now += LOOK
    began = now
    while gathering.most == 1:
        gathering.look(Saturation(int(1_000 * now), 2, True, 1.0, 0.5, True, now))
        now += LOOK
        assert now - began < 60, "the trial never ends"


def in_trial(most, speed, nodes=1):
    """Return a gathering that has begun a trial with two tasks, and the look that began it."""
    gathering, seen = Gathering(most), Saturation(0, 2, True, 1.0, 0.5, False, 0.0, nodes)
    while gathering.most == most:
        seen = replace(seen, rows=seen.rows + int(speed * LOOK), now=seen.now + LOOK)
        gathering.look(seen)
    return gathering, seen


def test_trial_that_was_never_measured_shows_nothing():
    gathering, seen = in_trial(1, 1_000.0)
    while gathering.most is None:
        seen = replace(seen, rows=seen.rows + 1_000, moving=True, now=seen.now + LOOK)
        gathering.look(seen)
    assert gathering.proven(seen.now) is None


def test_more_tasks_are_kept_that_catch_up_with_what_arrives():
    node = SaturatedNode((1_000.0, 1_600.0), most=1, arrivals=1_050.0)
    node.run(30)
    assert node.run(60) == pytest.approx(1_050, rel=0.01)
    assert node.gathering.most is None


def test_trial_during_which_the_input_ends_shows_nothing():
    gathering, seen = in_trial(1, 1_000.0)
    while gathering.most is None:
        seen = replace(seen, waiting=False, busy=0.0, now=seen.now + LOOK)
        gathering.look(seen)
    assert gathering.proven(seen.now) is None


@pytest.mark.parametrize(("most", "nodes"), [(None, (1, 2)), (None, (2, 3)), (1, (2, 1))])
def test_trial_ends_without_a_result_if_other_nodes_would_decide_it(most, nodes):
    """As fast as before on each node: fewer tasks seem better with more nodes, and more tasks worse with fewer."""
    gathering, seen = in_trial(most, nodes[0] * 1_000.0, nodes=nodes[0])
    for look in range(6):
        rows = seen.rows + int(nodes[1] * 1_000 * LOOK)
        seen = replace(seen, rows=rows, moving=look < 2, now=seen.now + LOOK, nodes=nodes[1])
        gathering.look(seen)
        assert gathering.proven(seen.now) is None
        assert look > 4 or gathering.most == most


@given(
    tasks=st.integers(1, 3).map(lambda power: 2**power),
    peak=st.integers(0, 3),
    up=st.floats(1.25, 2.0),
    down=st.floats(0.3, 0.8),
    start=st.none() | st.integers(0, 3).map(lambda power: 2**power),
    seed=st.integers(0, 99),
)
def test_from_every_start_nine_tenths_of_the_best_are_reached(tasks, peak, up, down, start, seed):
    steps = np.log2(np.arange(1, tasks + 1))
    speeds = 1_000 * np.where(steps <= peak, up ** np.minimum(steps, peak), up**peak * down ** (steps - peak))
    node = SaturatedNode(tuple(speeds.tolist()), start, noise=0.02, seed=seed)
    node.run(300)
    assert node.run(300) > 0.9 * max(speeds[2**power - 1] for power in range(4) if 2**power <= tasks)


@given(speeds=st.tuples(st.floats(100, 1_000), st.floats(100, 1_000)), seed=st.integers(0, 99))
def test_noise_costs_no_more_than_trials(speeds, seed):
    node = SaturatedNode(speeds, noise=0.1, seed=seed)
    node.run(120)
    assert node.run(1_200) > 0.97 / GAIN * max(speeds)


@pytest.mark.parametrize("most", [0, -1])
def test_no_tasks_are_refused(most):
    with pytest.raises(PlanningError, match="at least one task"):
        Gathering(most)
