"""The control loop in a closed loop with a small simulated cluster under load."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.replay import replay
from dask_elastic.control.settings import ControlSettings

TARGET = 0.03


def constant(rate):
    return lambda now: rate


def step(before, after, at=20.3):
    return lambda now: before if now < at else after


def best_throughput(shares, cores):
    """Return the throughput of the best integer allocation, as a multiple of one core's service rate."""
    counts = np.ones(len(shares))
    for _ in range(cores - len(shares)):
        counts[np.argmax(shares / counts)] += 1
    return 1.0 / np.max(shares / counts)


def test_doubled_load_meets_target_within_three_periods(kit):
    executors = kit.executors("op", [0, 1], [3, 3], 1000.0)
    load = kit.Load("job", step(4000, 8000), [(executors, kit.even(2))], target=TARGET)
    plant = kit.Plant(kit.nodes(4, 4), [load], noise=0.03).run(45, ControlLoop())
    late = [second for second, latency in enumerate(plant.latency["job"], 1) if latency > TARGET]
    assert late, "the doubled load never exceeded the target"
    assert late[0] == 21
    assert late[-1] <= 23
    assert plant.total("job") <= 13  # 8 cores of load, headroom, and a surplus that is not yet released


def test_first_fit_moves_more_state_than_elasticutor(kit):
    moved = {}
    for planner in ("elasticutor", "naive"):
        executors = kit.executors("op", [0, 1, 2, 3], [2, 2, 2, 2], 1000.0, state=1 << 24)
        shares = [[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.2, 0.3], [0.3, 0.4, 0.1, 0.2], [0.2, 0.3, 0.4, 0.1]]
        load = kit.Load(
            "job",
            lambda now: 9000 if now % 60 < 30 else 4500,
            [(executors, lambda now, shares=shares: shares[int(now // 15) % 4])],
            target=TARGET,
            planner=planner,
        )
        plant = kit.Plant(kit.nodes(4, 6), [load], seed=3, noise=0.03).run(120, ControlLoop())
        moved[planner] = sum(change.moved_bytes for plan in plant.plans for change in plan.changes)
    assert moved["naive"] > 1.5 * moved["elasticutor"] > 0


def test_halved_load_releases_cores_once_after_release_time(kit):
    executors = kit.executors("op", [0, 1, 2], [4, 4, 4], 1000.0)
    load = kit.Load("job", step(9000, 4500), [(executors, kit.even(3))], target=TARGET)
    settings = ControlSettings()
    plant = kit.Plant(kit.nodes(4, 4), [load], noise=0.03).run(60, ControlLoop(settings))
    before, after = plant.cores["job"][18], plant.cores["job"][-1]
    assert sum(before) >= 10
    assert sum(after) <= 7
    released = [i for i in range(20, 60) if sum(plant.cores["job"][i]) < sum(plant.cores["job"][i - 1])]
    assert released[0] - 20 >= settings.release_after - 1, "a surplus has to last before it is released"
    assert len(released) <= 2
    assert not any(sum(plant.cores["job"][i]) > sum(plant.cores["job"][i - 1]) for i in range(21, 60)), "flapping"
    assert max(plant.latency["job"][20:]) <= TARGET
    assert "surplus" in plant.decisions("job")[-1].reason


def test_halved_load_releases_cores_although_the_clock_was_set_back_for_an_hour(kit):
    executors = kit.executors("op", [0, 1], [4, 4], 1000.0)
    load = kit.Load("job", step(6000, 2500, at=8.3), [(executors, kit.even(2))], target=TARGET)
    loop, times = ControlLoop(), []

    class SetBack:
        def tick(self, snapshot):
            times.append(snapshot.now - (3_600.0 if snapshot.now > 6 else 0.0))
            return loop.tick(kit.replaced(snapshot, now=times[-1]))

    plant = kit.Plant(kit.nodes(2, 6), [load]).run(28, SetBack())
    assert sum(plant.cores["job"][7]) >= 8
    assert plant.total("job") <= 5
    assert plant.decisions("job")[-1].time in times


def test_key_shuffle_restores_throughput_within_three_periods(kit):
    first, second = np.array([0.25] * 4), np.array([0.4, 0.15, 0.2, 0.25])
    executors = kit.executors("op", [0, 1, 2, 3], [4] * 4, 1000.0)
    load = kit.Load("job", constant(50_000), [(executors, lambda now: first if now < 20.1 else second)])
    plant = kit.Plant(kit.nodes(4, 4), [load], noise=0.02).run(35, ControlLoop())
    assert plant.changes("job") - plant.changes("job", since=20) == 0, "cores were exchanged although loads were equal"
    best = 1000 * best_throughput(second, 16)
    assert min(plant.throughput["job"][23:]) >= 0.95 * best
    assert plant.throughput["job"][20] < 0.8 * best, "the shuffle did not reduce throughput"


def test_repeated_key_shuffles_keep_ninety_percent_of_throughput(kit):
    random = np.random.default_rng(5)
    shares = [random.dirichlet(np.full(4, 60.0)) for _ in range(20)]
    executors = kit.executors("op", [0, 1, 2, 3], [4] * 4, 1000.0)
    load = kit.Load("job", constant(50_000), [(executors, lambda now: shares[int(now / 3.75)])])
    plant = kit.Plant(kit.nodes(4, 4), [load], noise=0.02).run(60, ControlLoop())
    best = [1000 * best_throughput(shares[int((second + 0.5) / 3.75)], 16) for second in range(60)]
    assert sum(plant.throughput["job"][5:]) >= 0.9 * sum(best[5:])


def test_chain_of_operators_gets_cores_for_its_total_latency(kit):
    first, second = kit.executors("parse", [0], [1], 4000.0), kit.executors("count", [1, 2], [1, 1], 1000.0)
    load = kit.Load("job", step(2000, 6000), [(first, kit.even(1)), (second, kit.even(2))], target=TARGET)
    plant = kit.Plant(kit.nodes(4, 4), [load], noise=0.02).run(60, ControlLoop())
    parse, *count = plant.cores["job"][-1]
    assert 2 <= parse <= 4
    assert 7 <= sum(count) <= 10
    assert max(plant.latency["job"][-20:]) <= TARGET


def test_large_sub_batches_need_more_cores_for_the_same_target(kit):
    """Sub-batches of 200 rows have a service time of 20 ms each, and so need more cores for the same target."""
    used = []
    for rows in (1.0, 200.0):
        executors = kit.executors("op", [0], [7], 10_000.0, rows=rows)
        load = kit.Load("job", constant(35_000), [(executors, kit.even(1))], target=0.04)
        plant = kit.Plant(kit.nodes(2, 8), [load]).run(30, ControlLoop())
        assert max(plant.latency["job"]) <= 0.04
        used.append(plant.total("job"))
    assert used[0] < used[1]


def test_two_greedy_jobs_share_cores_evenly_and_report_starvation(kit):
    loads = [
        kit.Load(name, constant(rate), [(kit.executors("op", [0, 1], [2, 2], 1000.0), kit.even(2))], target=TARGET)
        for name, rate in (("a", 20_000), ("b", 30_000))
    ]
    plant = kit.Plant(kit.nodes(2, 8), loads, noise=0.03).run(30, ControlLoop())
    assert plant.total("a") == plant.total("b") == 8
    assert all(plant.plans[-1].outlook[name].starved > 0 for name in "ab")
    assert any("more cores than it can get" in decision.reason for decision in plant.decisions("b"))
    assert plant.changes("a", since=10) + plant.changes("b", since=10) == 0


def test_job_within_its_share_keeps_target_beside_greedy_job(kit):
    modest = kit.Load("modest", constant(3500), [(kit.executors("op", [0], [5], 1000.0), kit.even(1))], target=TARGET)
    greedy = kit.Load(
        "greedy", step(2000, 40_000), [(kit.executors("op", [1], [3], 1000.0), kit.even(1))], target=TARGET
    )
    plant = kit.Plant(kit.nodes(2, 8), [modest, greedy], noise=0.03).run(45, ControlLoop())
    assert max(plant.latency["modest"][5:]) <= TARGET
    assert plant.total("modest") >= 4
    assert plant.total("modest") + plant.total("greedy") == 16
    assert plant.plans[-1].outlook["greedy"].starved > 0
    assert plant.plans[-1].outlook["modest"].starved == 0


def test_job_without_target_releases_surplus_only_to_other_jobs(kit):
    free = kit.Load("free", constant(2000), [(kit.executors("op", [0], [8], 1000.0), kit.even(1))])
    other = kit.Load("other", step(1000, 9000), [(kit.executors("op", [1], [2], 1000.0), kit.even(1))], target=TARGET)
    plant = kit.Plant(kit.nodes(2, 8), [free, other], noise=0.02).run(18, ControlLoop())
    assert plant.total("free") == 8
    plant.run(30, ControlLoop())
    assert plant.total("other") >= 10
    assert 3 <= plant.total("free") <= 6


def test_gil_bound_operator_grows_on_other_nodes_and_is_reported(kit):
    python, numpy_one = kit.executors("python", [0], [1], 1000.0, gil=1), kit.executors("vector", [1], [1], 1000.0)
    loads = [
        kit.Load("p", constant(2500), [(python, kit.even(1))], target=TARGET),
        kit.Load("v", constant(2500), [(numpy_one, kit.even(1))], target=TARGET),
    ]
    plant = kit.Plant(kit.nodes(4, 4), loads, noise=0.03).run(30, ControlLoop())
    assert max(python[0].cores.values()) == 1
    assert len(python[0].cores) >= 3
    assert plant.plans[-1].outlook["p"].bound == ("python",)
    assert plant.plans[-1].outlook["v"].bound == ()
    assert any("threads of python hold the GIL" in d.reason and d.bound == ("python",) for d in plant.decisions("p"))
    assert plant.latency["p"][-1] <= TARGET


def test_pinned_executors_and_static_jobs_keep_their_cores(kit):
    pinned = kit.executors("pinned", [0], [2], 1000.0, pinned=True)
    free = kit.executors("free", [1], [1], 1000.0)
    static = kit.executors("op", [1], [2], 1000.0)
    loads = [
        kit.Load("job", constant(9000), [(pinned + free, kit.even(2))], target=TARGET),
        kit.Load("static", constant(9000), [(static, kit.even(1))], target=TARGET, paradigm="static"),
    ]
    plant = kit.Plant(kit.nodes(2, 4), loads).run(20, ControlLoop())
    assert pinned[0].cores == {0: 2}
    assert static[0].cores == {1: 2}
    assert plant.total("job") == 5, "it needs only what the pinned executor lets through"
    assert max(plant.used()) <= 4
    assert not plant.decisions("static")
    assert plant.plans[-1].outlook["static"].starved == 0


def test_new_node_is_used_within_two_ticks(kit):
    executors = kit.executors("op", [0, 1], [4, 4], 1000.0)
    load = kit.Load("job", constant(11_000), [(executors, kit.even(2))], target=TARGET)
    plant, loop = kit.Plant(kit.nodes(2, 4), [load], noise=0.02), ControlLoop()
    plant.run(8, loop)
    assert plant.plans[-1].outlook["job"].starved > 0
    plant.nodes.append(kit.nodes(3, 8)[2])
    plant.run(2, loop)
    assert plant.used()[2] >= 4
    plant.run(10, loop)
    assert plant.plans[-1].outlook["job"].starved == 0


def test_retiring_node_is_emptied_including_pinned_cores(kit):
    executors = kit.executors("op", [0, 1], [2, 3], 1000.0)
    pinned = kit.executors("pinned", [1], [2], 1000.0, pinned=True)
    load = kit.Load("job", constant(3000), [(executors + pinned, lambda now: [0.4, 0.4, 0.2])], target=TARGET)
    plant, loop = kit.Plant(kit.nodes(3, 8), [load]), ControlLoop()
    plant.run(5, loop)
    before = plant.cores["job"][-1]
    plant.nodes[1] = kit.replaced(plant.nodes[1], retiring=True)
    plant.run(3, loop)
    assert plant.used()[1] == 0
    assert plant.cores["job"][-1] == before
    assert "tcp://n1:1 is retiring" in plant.decisions("job")[-1].reason


def test_cores_stay_if_all_nodes_retire(kit):
    executors = kit.executors("op", [0], [2], 1000.0)
    plant = kit.Plant(kit.nodes(1, 4), [kit.Load("job", constant(1500), [(executors, kit.even(1))], target=TARGET)])
    plant.nodes[0] = kit.replaced(plant.nodes[0], retiring=True)
    plant.run(5, ControlLoop())
    assert plant.used() == [2]


def test_unreachable_target_gets_best_effort_and_is_reported(kit):
    executors = kit.executors("op", [0, 1], [2, 2], 1000.0)
    load = kit.Load("job", constant(3000), [(executors, kit.even(2))], target=0.0005)
    plant = kit.Plant(kit.nodes(4, 8), [load], noise=0.02).run(40, ControlLoop())
    decision = next(decision for decision in plant.decisions("job") if not decision.feasible)
    assert "no allocation of 32 cores reaches 500 us" in decision.reason
    assert not plant.plans[-1].outlook["job"].feasible
    least = 0.005 + 0.001
    assert plant.latency["job"][-1] <= 1.1 * least
    assert plant.total("job") <= 12, "the last per cent of latency does not justify the whole cluster"
    assert plant.changes("job", since=20) <= 2


def test_moved_state_stays_within_budget_in_every_period(kit):
    budget = 100e6
    executors = kit.executors("op", [0, 0, 0, 0], [2, 2, 2, 2], 1000.0, state=int(90e6))
    load = kit.Load("job", constant(5000), [(executors, kit.even(4))], target=TARGET)
    plant = kit.Plant(kit.nodes(3, 8), [load])
    plant.nodes[0] = kit.replaced(plant.nodes[0], retiring=True)
    plant.run(8, ControlLoop(ControlSettings(budget_bytes=budget)))
    moved = [sum(change.moved_bytes for change in plan.changes) for plan in plant.plans]
    assert 0 < max(moved) <= budget
    assert plant.used()[0] == 0
    assert sum(moved) == pytest.approx(4 * 90e6)
    deferred = next(decision for decision in plant.decisions("job") if "is deferred" in decision.reason)
    assert "MiB" in deferred.reason


def test_dry_run_writes_decisions_and_changes_nothing(kit):
    def plant(dry_run):
        executors = kit.executors("op", [0, 1], [1, 1], 1000.0)
        load = kit.Load("job", constant(4000), [(executors, kit.even(2))], target=TARGET, dry_run=dry_run)
        return kit.Plant(kit.nodes(2, 8), [load])

    dry, real = plant(True).run(12, ControlLoop()), plant(False).run(1, ControlLoop())
    assert not any(plan.changes for plan in dry.plans)
    decisions = dry.decisions("job")
    assert decisions[0].changes == real.decisions("job")[0].changes
    assert not decisions[0].applied
    assert real.decisions("job")[0].applied
    assert "dry run" in decisions[0].reason
    assert len(decisions) < 8, "repeated decisions are omitted"


def test_dry_run_leaves_cores_to_real_jobs(kit):
    dry = kit.Load("dry", constant(9000), [(kit.executors("op", [0], [2], 1000.0), kit.even(1))], TARGET, dry_run=True)
    real = kit.Load("real", constant(9000), [(kit.executors("op", [1], [2], 1000.0), kit.even(1))], TARGET)
    plant = kit.Plant(kit.nodes(2, 8), [dry, real]).run(12, ControlLoop())
    assert plant.total("dry") == 2
    assert plant.total("real") >= 10


def test_fewer_slots_than_executors_are_shared(kit):
    executors = kit.executors("op", [0, 1] * 3, [1] * 6, 1000.0)
    load = kit.Load("job", constant(2000), [(executors, kit.even(6))], target=TARGET)
    plant = kit.Plant(kit.nodes(2, 2), [load]).run(10, ControlLoop())
    assert plant.cores["job"][-1] == (1,) * 6
    assert plant.changes("job") == 0
    crowded = kit.Plant(kit.nodes(3, 2), [load])
    crowded.nodes[0] = kit.replaced(crowded.nodes[0], retiring=True)
    crowded.run(3, ControlLoop())
    assert crowded.used() == [0, 3, 3]
    assert "share cores" in crowded.decisions("job")[0].reason


def test_unmeasured_executors_keep_cores_until_other_jobs_need_them(kit):
    idle = kit.Load("idle", constant(0.0), [(kit.executors("op", [0], [6], 1000.0), kit.even(1))], target=TARGET)
    busy = kit.Load("busy", step(1000, 30_000, at=14.5), [(kit.executors("op", [1], [2], 1000.0), kit.even(1))], TARGET)
    plant, loop = kit.Plant(kit.nodes(2, 8), [idle, busy]), ControlLoop()
    plant.run(14, loop)
    assert plant.total("idle") == 6
    plant.run(10, loop)
    assert plant.total("idle") == 1
    assert plant.total("busy") == 15


def test_tick_without_jobs_or_nodes_returns_empty_plan(kit):
    loop = ControlLoop()
    assert loop.tick(kit.Plant([], []).snapshot()).changes == ()
    empty = kit.Plant(kit.nodes(1, 2), []).snapshot()
    assert loop.tick(empty).decisions == ()


def doubled(kit, seed=3):
    executors = kit.executors("op", [0, 1, 2], [2, 2, 2], 1000.0, state=1 << 24)
    load = kit.Load("job", step(4000, 9000), [(executors, kit.even(3))], target=TARGET)
    return kit.Plant(kit.nodes(4, 6, hosts=["a", "a", "b", "b"]), [load], seed=seed, noise=0.05)


def plain(plan):
    decisions = [(d.time, d.wanted, d.changes, d.applied, d.reason, d.predicted) for d in plan.decisions]
    return plan.changes, decisions


def test_replay_of_same_snapshots_gives_same_plans(kit):
    plant = doubled(kit).run(45, ControlLoop())
    again = replay(plant.snapshots)
    assert plant.changes("job") > 3
    assert [plain(plan) for plan in again] == [plain(plan) for plan in plant.plans]


def test_decision_seconds_are_measured_with_given_clock(kit):
    ticks = iter(range(1000))
    plant = doubled(kit).run(24, ControlLoop(clock=lambda: float(next(ticks))))
    assert {decision.seconds for decision in plant.decisions("job")} == {1.0}
    assert {d.seconds for plan in replay(plant.snapshots) for d in plan.decisions} == {0.0}


def test_predicted_latency_is_close_to_measured_latency(kit):
    plant = doubled(kit).run(20, ControlLoop())
    predicted = [plan.outlook["job"].predicted for plan in plant.plans[8:]]
    assert np.median(predicted) == pytest.approx(np.median(plant.latency["job"][8:]), rel=0.15)
    assert not any(math.isinf(value) for value in predicted)
