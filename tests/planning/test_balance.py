from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.planning import ShardMove, balance
from dask_elastic.vocab.errors import PlanningError


def totals(load, owner, tasks):
    return {task: sum(x for x, t in zip(load, owner, strict=True) if t == task) for task in tasks}


def applied(owner, moves):
    result = list(owner)
    for move in moves:
        assert result[move.shard] == move.source
        result[move.shard] = move.target
    return result


def reference(load, owner, tasks, threshold, node_of_task, cost=None, cost_across=None):
    """The same rule by trying every shard between every pair of tied tasks."""
    none = [0] * len(load)
    cost = none if cost is None else cost
    cost_across = cost if cost_across is None else cost_across
    now, order = list(owner), {}
    while reference_search(load, now, tasks, threshold, node_of_task, (cost, cost_across), order):
        pass
    return [ShardMove(shard, owner[shard], now[shard]) for shard in order if now[shard] != owner[shard]]


def reference_search(load, owner, tasks, threshold, node_of_task, costs, order):
    left, moved = list(tasks), False
    while left:
        sums = totals(load, owner, left)
        peak, least = max(sums.values()), min(sums.values())
        if peak * len(left) <= threshold * sum(sums.values()):
            break
        targets = [task for task in left if sums[task] == least]
        options = []
        for source in [task for task in left if sums[task] == peak]:
            near = [task for task in targets if node_of_task[task] == node_of_task[source]]
            across = not near
            target = min(near or targets)
            for shard in [shard for shard, task in enumerate(owner) if task == source != target]:
                larger = max(peak - load[shard], least + load[shard])
                options.append((larger + costs[across][shard], across, shard, target))
        if (not options or min(options)[0] >= peak) and costs[0] != costs[1]:
            options = reference_options_within(load, owner, sums, peak, node_of_task, costs[0])
        if not options or min(options)[0] >= peak:
            left = [task for task in left if sums[task] < peak]
            continue
        _, _, shard, target = min(options)
        owner[shard], order[shard], moved = target, None, True
    return moved


def reference_options_within(load, owner, sums, peak, node_of_task, cost):
    options = []
    for source in [task for task in sums if sums[task] == peak]:
        beside = [(sums[task], task) for task in sums if node_of_task[task] == node_of_task[source] and task != source]
        if beside:
            least, target = min(beside)
            for shard in [shard for shard, task in enumerate(owner) if task == source]:
                options.append((max(peak - load[shard], least + load[shard]) + cost[shard], False, shard, target))
    return options


def relievable(load, owner, tasks):
    """The tasks that some move of one of their shards would leave, and its target, below their load of now."""
    sums = totals(load, owner, tasks)
    return {
        task
        for shard, task in enumerate(owner)
        if load[shard] > 0 and any(sums[other] + load[shard] < sums[task] for other in tasks if other != task)
    }


@st.composite
def problems(draw, loads):
    tasks = draw(st.lists(st.integers(-5, 40), min_size=1, max_size=6, unique=True))
    load = draw(st.lists(loads, max_size=24))
    owner = [draw(st.sampled_from(tasks)) for _ in load]
    threshold = draw(st.sampled_from([1.0, 1.2, 1.5]))
    nodes = {task: draw(st.sampled_from("ab")) for task in tasks}
    return load, owner, tasks, threshold, nodes


whole = problems(st.integers(0, 12))
real = problems(st.floats(0, 1e6))


@given(whole)
def test_every_step_equals_brute_force(problem):
    assert balance(*problem) == reference(*problem)


@given(real)
def test_balance_is_never_worse_and_moves_each_shard_once(problem):
    load, owner, tasks, _, _ = problem
    moves = balance(*problem)
    after = applied(owner, moves)
    before = max(totals(load, owner, tasks).values())
    assert max(totals(load, after, tasks).values()) <= before * (1 + 1e-9)
    assert len({move.shard for move in moves}) == len(moves)
    assert all(move.source != move.target and load[move.shard] > 0 for move in moves)


@given(real)
def test_planning_again_finds_no_move(problem):
    load, owner, tasks, threshold, nodes = problem
    after = applied(owner, balance(*problem))
    assert balance(load, after, tasks, threshold, nodes) == []


@given(whole)
def test_balance_lowers_the_sorted_loads(problem):
    load, owner, tasks, _, _ = problem
    moves = balance(*problem)
    before, after = (sorted(totals(load, one, tasks).values(), reverse=True) for one in (owner, applied(owner, moves)))
    assert after < before if moves else after == before


@given(whole)
def test_only_tasks_without_relieving_move_stay_above_the_mean_of_the_others(problem):
    load, owner, tasks, threshold, _ = problem
    after = applied(owner, balance(*problem))
    sums, can = totals(load, after, tasks), relievable(load, after, tasks)
    left = sorted(tasks, key=sums.get)
    # From the most loaded one on: each that is above the limit of those below it and itself cannot be relieved.
    while left and sums[left[-1]] * len(left) > threshold * sum(sums[task] for task in left):
        tied = {task for task in left if sums[task] == sums[left[-1]]}
        assert not tied & can
        left = [task for task in left if task not in tied]


def test_a_hot_shard_keeps_its_task_to_itself_and_the_others_are_balanced():
    # Nine tenths of the load are one shard's; the others were left at 1, 8 and 23 shards.
    load, owner = [9 * 31.0, *[1.0] * 31], [0] + [1] + [2] * 8 + [3] * 22
    after = applied(owner, balance(load, owner, [0, 1, 2, 3]))
    assert after[0] == 0
    assert after.count(0) == 1
    assert min(after.count(task) for task in (1, 2, 3)) >= 9
    # Two of them, and a task in which they were both.
    load, owner = [100.0, 90.0, *[1.0] * 30], [0, 0, *[0] * 10, *[1] * 20]
    counts = sorted(np.bincount(applied(owner, balance(load, owner, [0, 1, 2, 3])), minlength=4))
    assert counts[:2] == [1, 1]
    assert counts[2] >= 12


def test_tasks_that_are_set_aside_do_not_count_for_the_threshold():
    load, owner = [50.0, *[1.0] * 21], [0] + [1] * 12 + [2] * 9
    assert balance(load, owner, [0, 1, 2], threshold=1.2) == []
    assert balance([50.0, *[1.0] * 21], [0] + [1] * 13 + [2] * 8, [0, 1, 2], 1.2) == [ShardMove(1, 1, 2)]


@given(real, st.randoms(use_true_random=False))
def test_balance_is_independent_of_task_order(problem, random):
    load, owner, tasks, threshold, nodes = problem
    shuffled = random.sample(tasks, len(tasks))
    assert balance(*problem) == balance(np.array(load), np.array(owner, dtype=int), shuffled, threshold, nodes)


@given(whole, st.sampled_from([0.125, 1e-300, 1e250]))
def test_balance_is_independent_of_unit_of_load(problem, unit):
    load, *rest = problem
    # Multiples of a power of two stay exact; for other units only the planning must still succeed.
    scaled = balance([x * unit for x in load], *rest)
    if unit == 0.125:
        assert scaled == balance(load, *rest)


@pytest.mark.parametrize(
    ("load", "owner", "tasks"),
    [([], [], []), ([], [], [3, 4]), ([0, 0, 0], [1, 1, 1], [1, 2]), ([5, 6], [7, 7], [7]), ([9], [1], [1, 2, 3])],
)
def test_no_move_is_planned_without_gain(load, owner, tasks):
    assert balance(load, owner, tasks, threshold=1.0) == []


def test_balance_moves_only_above_the_threshold():
    load, owner = [1.0] * 11, [0] * 6 + [1] * 5
    assert balance(load, owner, [0, 1], threshold=1.2) == []
    assert balance([1.0] * 13, [0] * 8 + [1] * 5, [0, 1], threshold=1.2) == [ShardMove(0, 0, 1)]


def test_move_with_equal_gain_stays_on_the_node():
    load, owner = [4.0, 4.0], [5, 5]
    assert balance(load, owner, [5, 6, 7], 1.2, {5: "a", 6: "b", 7: "a"}) == [ShardMove(0, 5, 7)]
    assert balance(load, owner, [5, 6, 7], 1.2, {5: "b", 6: "b", 7: "a"}) == [ShardMove(0, 5, 6)]
    assert balance(load, owner, [5, 6, 7], 1.2) == [ShardMove(0, 5, 6)]
    assert balance([4.0, 4.0], [0, 0], [0, 1, 2], 1.2, np.array([9, 8, 9])) == [ShardMove(0, 0, 2)]


def test_move_with_better_gain_leaves_the_node():
    nodes = {0: "a", 1: "a", 2: "b"}
    assert balance([4, 4, 4, 1], [0, 0, 0, 1], [0, 1, 2], 1.2, nodes)[0] == ShardMove(0, 0, 2)


def test_a_shard_that_is_moved_twice_is_listed_once():
    load = [1, 7, 3, 3, 5, 2, 6, 3]
    moves = balance(load, [0] * 8, [0, 1, 2, 3], 1.0)
    assert len({move.shard for move in moves}) == len(moves)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, float("nan")], [0, 0], [0]), "load of shard 1 is nan"),
        (([-1.0], [0], [0]), r"load of shard 0 is -1\.0"),
        (([float("inf")], [0], [0]), "load of shard 0 is inf"),
        (([1.0], [0, 0], [0]), r"shape \(1,\), owner \(2,\)"),
        (([1.0], [2], [0, 1]), r"shard 0 is owned by 2, which is none of the tasks \[0, 1\]"),
        (([1.0], [0], []), "shard 0 is owned by 0"),
        (([1.0], [0.5], [0]), "type float64"),
        (([1.0], [0], [0, 0]), "task 0 is named twice"),
        (([1.0], [0], [0], 0.9), r"threshold is 0\.9"),
        (([1.0], [0], [0], float("nan")), "threshold is nan"),
        (([1.0], [0], [0, 4], 1.2, {0: "a"}), "no node for task 4"),
        (([1.0], [0], [0, 4], 1.2, ["a"]), "no node for task 4"),
    ],
)
def test_malformed_problems_are_refused(arguments, message):
    with pytest.raises(PlanningError, match=message):
        balance(*arguments)


def test_invalid_shard_move_is_refused_with_its_values():
    for arguments in ((-1, 0, 1), (3, 2, 2)):
        with pytest.raises(PlanningError, match="is no move"):
            ShardMove(*arguments)


def test_balance_of_very_many_shards_does_not_overflow():
    load = np.full(100_000, 1e300)
    owner = np.zeros(100_000, dtype=int)
    moves = balance(load[:40_000], owner[:40_000], [0, 1])
    assert 15_000 < len(moves) <= 20_000
    assert balance(load, np.arange(100_000) % 4, range(4)) == []


@pytest.mark.parametrize("hot", [0, 8])
def test_a_large_executor_is_balanced_within_a_millisecond(hot, slowness):
    random = np.random.default_rng(1)
    load = 1.0 / np.arange(1, 1025) ** 0.5
    random.shuffle(load)
    owner = random.integers(0, 63, 1024)
    if hot:
        load[:hot] *= 1_000
        owner[:hot] = np.arange(hot)
    durations = []
    for _ in range(20):
        start = time.process_time()
        moves = balance(load, owner, range(64))
        durations.append(time.process_time() - start)
    sums = np.bincount(owner, load, minlength=64)
    for move in moves:
        sums[move.source] -= load[move.shard]
        sums[move.target] += load[move.shard]
    others = np.sort(sums)[: 64 - hot]
    assert others.max() / others.mean() <= 1.2
    # The quickest of the runs, as others share the machine; the goal is 1 ms, the rest is room for noise.
    assert min(durations) < 0.002 * slowness()


def test_move_that_gains_no_more_than_it_costs_is_not_made():
    load, owner = [90.0, 3, 2, 2, 1, 1], [0, 1, 1, 1, 2, 2]
    assert balance(load, owner, [0, 1, 2]) == [ShardMove(1, 1, 2)]
    assert balance(load, owner, [0, 1, 2], cost=1.9) == [ShardMove(1, 1, 2)]
    assert balance(load, owner, [0, 1, 2], cost=2.0) == []
    assert balance(load, owner, [0, 1, 2], cost=[0, 5, 1.8, 1.9, 0, 0]) == [ShardMove(2, 1, 2)]
    assert balance(load, owner, [0, 1, 2], cost=[0, 5, 1.9, 1.8, 0, 0]) == [ShardMove(3, 1, 2)]


def test_move_between_nodes_costs_what_was_given_for_it():
    load, owner = [4.0, 4, 4, 1], [0, 0, 0, 1]
    assert balance(load, owner, [0, 1], 1.0, "aa", cost=1, cost_across=4) == [ShardMove(0, 0, 1)]
    assert balance(load, owner, [0, 1], 1.0, "ab", cost=1, cost_across=4) == []
    assert balance(load, owner, [0, 1], 1.0, "ab", cost=9, cost_across=1) == [ShardMove(0, 0, 1)]


def test_task_beside_takes_shards_if_moves_to_the_least_loaded_one_cost_too_much():
    load, owner = [4.0, 4, 4, 1], [0, 0, 0, 1]
    assert balance(load, owner, [0, 1, 2], 1.0, "aab", cost=1, cost_across=2) == [
        ShardMove(0, 0, 2),
        ShardMove(1, 0, 1),
    ]
    assert balance(load, owner, [0, 1, 2], 1.0, "aab", cost=1, cost_across=4) == [ShardMove(0, 0, 1)]
    assert balance(load, owner, [0, 1, 2], 1.0, "aab", cost=4, cost_across=4) == []


def test_small_state_moves_in_place_of_large_state_of_equal_load():
    load, owner = [3.0, 3, 3, 3], [0, 0, 0, 0]
    moves = balance(load, owner, [0, 1], 1.0, "ab", cost_across=[2, 0.1, 2, 0.2])
    assert moves == [ShardMove(1, 0, 1), ShardMove(3, 0, 1)]


costs = st.one_of(st.integers(0, 6), st.lists(st.integers(0, 6), min_size=24, max_size=24))


def of_shards(cost, shards):
    return cost[:shards] if isinstance(cost, list) else [cost] * shards


@given(whole, costs, st.none() | costs)
def test_every_step_with_costs_equals_brute_force(problem, cost, across):
    shards = len(problem[0])
    cost = of_shards(cost, shards)
    across = None if across is None else of_shards(across, shards)
    assert balance(*problem, cost, across) == reference(*problem, cost, across)


@given(real, costs, costs, st.floats(0, 1e6))
def test_planning_again_at_the_same_costs_finds_no_move(problem, cost, across, unit):
    load, owner, tasks, threshold, nodes = problem
    given = [np.array(of_shards(one, len(load)), float) * unit for one in (cost, across)]
    after = applied(owner, balance(*problem, *given))
    assert balance(load, after, tasks, threshold, nodes, *given) == []


@given(real, costs)
def test_higher_costs_never_leave_a_lower_peak_than_they_are_worth(problem, cost):
    """What a plan leaves out would have lowered the peak of the two tasks by no more than it costs."""
    load, owner, tasks, threshold, nodes = problem
    cost = of_shards(cost, len(load))
    after = applied(owner, balance(load, owner, tasks, threshold, nodes, cost))
    sums = totals(load, after, tasks)
    peak, least = max(sums.values(), default=0), min(sums.values(), default=0)
    if peak * len(tasks) <= threshold * sum(sums.values()) * (1 + 1e-9):
        return
    for shard, task in enumerate(after):
        if sums[task] == peak:
            gain = peak - max(peak - load[shard], least + load[shard])
            assert gain <= cost[shard] + 1e-6 * (1 + peak)


def test_noise_around_a_hot_key_causes_few_moves():
    """One shard has a core for itself; the small rest differs from second to second by chance alone."""
    random, tasks = np.random.default_rng(7), [0, 1, 2, 3]
    mean = np.full(64, 0.02 / 64)
    counts = {}
    for cost in (0.0, 0.005):
        owner, counts[cost] = [shard % 4 for shard in range(64)], 0
        for _ in range(100):
            load = random.poisson(mean * 1000) / 1000
            load[0] = 0.9
            moves = balance(load, owner, tasks, cost=cost)
            counts[cost] += len(moves)
            owner = applied(owner, moves)
    assert counts[0.0] > 100
    assert counts[0.005] < 20


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf"), [1.0], "abc"])
def test_invalid_cost_is_refused_by_name(cost):
    with pytest.raises(PlanningError, match="cost"):
        balance([1, 2], [0, 0], [0, 1], cost=cost)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), st.integers(0, 10), st.integers(0, 1000))
def test_every_move_gains_more_than_it_costs(load, cost, seed):
    random = np.random.default_rng(seed)
    owner = random.integers(0, 3, len(load)).tolist()
    moves = balance(load, owner, [0, 1, 2], 1.0, cost=cost)
    before, after = totals(load, owner, [0, 1, 2]), totals(load, applied(owner, moves), [0, 1, 2])
    gained = sum(x * x for x in before.values()) - sum(x * x for x in after.values())
    assert gained >= 2 * cost * sum(load[move.shard] for move in moves)
