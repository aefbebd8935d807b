from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dask_elastic.control.gil_bound import GilBound
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODES = tuple(NodeSnapshot(f"n{i}", "host", 64) for i in range(4))
RATE = 1000.0
OPERATOR = ExecutorId("op", 0)


class Bench:
    """One executor with a backlog and given cores; one measurement per second."""

    def __init__(self, running, noise=0.0, seed=0, **options):
        self.bound = GilBound(ControlSettings(**options))
        self.running = running
        self.noise, self.random = noise, np.random.default_rng(seed)
        self.now = 0.0
        self.job = None

    def hold(self, cores, seconds, queue=True, shards=None, name="job", nodes=NODES):
        for _ in range(seconds):
            self.now += 1.0
            rate = RATE * self.running(cores) * float(np.exp(self.random.normal(0, self.noise)))
            service = RATE * self.running(cores) / sum(cores.values())
            waiting = int(0.1 * rate) if queue else 0
            executor = ExecutorSnapshot(OPERATOR, 0, cores, rate, service, rate, queue=waiting, shard_load=shards)
            self.job = JobSnapshot(name, 1, (executor,))
            self.bound.observe(Snapshot(self.now, nodes, (self.job,)))
        return self

    @property
    def most(self):
        return self.bound.most(self.job, OPERATOR.component)

    @property
    def in_doubt(self):
        return bool(self.bound.in_doubt(self.job, self.now))


def perfect(cores):
    return sum(cores.values())


def locked(most):
    return lambda cores: sum(min(count, most) for count in cores.values())


def test_second_core_without_speedup_is_detected_as_gil_bound():
    bench = Bench(locked(1)).hold({0: 1}, 3).hold({0: 2}, 5)
    assert bench.most == 1
    assert bench.bound.operators(bench.job) == ("op",)


def test_cores_on_other_nodes_are_not_detected_as_gil_bound():
    bench = Bench(locked(1)).hold({0: 1}, 3).hold({0: 1, 1: 1}, 8).hold({0: 1, 1: 1, 2: 1}, 8)
    assert bench.most is None


def test_cores_added_on_same_and_other_node_are_distinguished():
    assert Bench(locked(1)).hold({0: 1}, 3).hold({0: 2, 1: 1}, 5).most == 1
    assert Bench(perfect).hold({0: 1}, 3).hold({0: 2, 1: 1}, 8).most is None


def test_remote_core_with_throughput_of_four_local_cores_reveals_gil():
    assert Bench(locked(1)).hold({0: 4}, 3).hold({0: 4, 1: 1}, 5).most == 1


def unequal(*speeds):
    return lambda cores: sum(speeds[node] * count for node, count in cores.items())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(1.0, 2.0), min_size=4, max_size=4),
    st.dictionaries(st.integers(0, 3), st.integers(1, 6), min_size=1),
    st.dictionaries(st.integers(0, 3), st.integers(1, 6), min_size=1),
)
@example([1.0, 2.0, 1.0, 1.0], {1: 1}, {0: 2})  # a slower node, to which the executor went
@example([1.0, 2.0, 1.0, 1.0], {0: 2}, {0: 2, 1: 1})  # a faster node
def test_nodes_of_different_speed_are_not_taken_for_the_gil(speeds, before, after):
    assert Bench(unequal(*speeds)).hold(before, 4).hold(after, 10).most is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1.0, 2.0), min_size=2, max_size=2), st.integers(1, 4))
def test_finding_is_not_revoked_because_nodes_differ_in_speed(speeds, most):
    def running(cores):
        return sum(speeds[node] * min(count, most) for node, count in cores.items())

    bench = Bench(running).hold({0: most}, 4).hold({0: most + 1}, 10)
    assert bench.most == most
    assert bench.hold({1: most + 1}, 10).hold({0: 1, 1: most + 1}, 10).most is not None


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_number_of_effective_threads_per_node_is_detected(most):
    bench = Bench(locked(most))
    for count in range(1, most + 2):
        bench.hold({0: count}, 6)
    assert bench.most == most


def test_released_core_without_slowdown_reveals_gil():
    assert Bench(locked(1)).hold({0: 2}, 3).hold({0: 1}, 5).most == 1


def test_speedup_below_a_fifth_is_gil_bound_and_above_is_not():
    def partly(share):
        return lambda cores: 1 + share * (sum(cores.values()) - 1)

    assert Bench(partly(0.15)).hold({0: 1}, 3).hold({0: 2}, 8).most == 1
    assert Bench(partly(0.3)).hold({0: 1}, 3).hold({0: 2}, 8).most is None


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.sampled_from([0.0, 0.01, 0.03]), st.integers(0, 10_000))
def test_perfect_scaling_is_never_detected_as_gil_bound(before, more, noise, seed):
    bench = Bench(perfect, noise, seed).hold({0: before}, 4).hold({0: before + more}, 12)
    assert bench.most is None
    assert bench.hold({0: before}, 12).most is None


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.sampled_from([0.0, 0.01, 0.02]), st.integers(0, 10_000))
def test_gil_is_detected_under_noise(most, noise, seed):
    bench = Bench(locked(most), noise, seed).hold({0: most}, 6).hold({0: most + 1}, 10)
    assert bench.most == most


def test_executor_without_overload_gives_no_finding():
    bench = Bench(locked(1)).hold({0: 1}, 4, queue=False).hold({0: 2}, 8, queue=False)
    assert bench.most is None
    assert not bench.in_doubt


def test_experiment_interrupted_by_sufficient_cores_gives_no_finding():
    bench = Bench(locked(1)).hold({0: 1}, 3).hold({0: 2}, 4, queue=False).hold({0: 2}, 8)
    assert bench.most is None


def test_executor_limited_by_one_shard_is_not_gil_bound():
    shards = np.array([0.97, 0.01, 0.02])
    assert Bench(locked(1)).hold({0: 1}, 3).hold({0: 2}, 8, shards=shards).most is None


def test_executor_is_in_doubt_until_added_core_shows_effect():
    bench = Bench(locked(1)).hold({0: 1}, 3).hold({0: 2}, 1)
    assert bench.in_doubt
    assert not Bench(perfect).hold({0: 1}, 3).hold({0: 2}, 1).in_doubt
    assert not Bench(locked(1)).hold({0: 1}, 3).hold({0: 1, 1: 1}, 1).in_doubt


def test_doubt_ends_without_visible_effect():
    bench = Bench(locked(20), noise=0.0).hold({0: 20}, 3).hold({0: 21}, 6)
    assert not bench.in_doubt


def test_finding_expires():
    bench = Bench(locked(1), bound_for=60.0).hold({0: 1}, 3).hold({0: 2}, 5)
    assert bench.most == 1
    assert bench.hold({0: 2}, 70).most is None


def test_finding_is_revoked_if_other_nodes_bring_no_speedup_either():
    bench = Bench(lambda cores: 1.0).hold({0: 1}, 3).hold({0: 2}, 5)
    assert bench.most == 1
    bench.hold({0: 1, 1: 1}, 8)
    assert bench.most is None
    assert bench.hold({0: 2}, 8).hold({0: 3}, 8).most is None, "it was revoked recently"


def test_finding_is_renewed_by_speedup_on_other_nodes():
    bench = Bench(locked(1), bound_for=20.0).hold({0: 1}, 3).hold({0: 2}, 5).hold({0: 1, 1: 1}, 8)
    assert bench.hold({0: 1, 1: 1}, 10).most == 1, "the expiry restarts"


def test_new_generation_starts_without_findings():
    bench = Bench(locked(1)).hold({0: 1}, 3).hold({0: 2}, 5)
    again = replace(bench.job, generation=2)
    bench.bound.observe(Snapshot(bench.now + 1, NODES, (again,)))
    assert bench.bound.most(again, OPERATOR.component) is None
    assert bench.most is None, "the earlier generation has ended"


def test_node_renumbering_is_no_change_of_cores():
    """When a worker leaves, the others get other numbers in the snapshot, but no core has changed."""
    bench = Bench(locked(1)).hold({1: 1}, 4)
    bench.hold({0: 1}, 4, nodes=NODES[1:])
    assert bench.hold({0: 2}, 5, nodes=NODES[1:]).most == 1


def reported(bound, now, enough, component="op"):
    """Observe two executors of an operator, which say how many cores of a node are enough for each."""
    executors = tuple(
        ExecutorSnapshot(ExecutorId(component, index), 0, {0: 2}, RATE, RATE, RATE, enough_cores=cores)
        for index, cores in enumerate(enough)
    )
    job = JobSnapshot("job", 1, executors)
    bound.observe(Snapshot(now, NODES, (job,)))
    return bound.most(job, component)


@pytest.mark.parametrize(("enough", "most"), [((1, None), 1), ((1, 2), 2), ((None, None), None)])
def test_what_executors_have_measured_themselves_is_a_result(enough, most):
    assert reported(GilBound(ControlSettings()), 1.0, enough) == most


def test_result_of_executors_ends_when_they_take_it_back():
    bound = GilBound(ControlSettings())
    assert reported(bound, 1.0, (1, 1)) == 1
    assert reported(bound, 2.0, (None, 1)) == 1
    assert reported(bound, 3.0, (None, None)) is None


def test_result_of_executors_lasts_as_long_as_they_say_so():
    bound = GilBound(ControlSettings(bound_for=10.0))
    assert [reported(bound, float(now), (1,)) for now in range(1, 60, 5)] == [1] * 12


def test_result_of_an_experiment_outlasts_what_other_executors_take_back():
    bench = Bench(locked(1)).hold({0: 1}, 3).hold({0: 2}, 5)
    assert reported(bench.bound, bench.now + 1, (1,), "other") == 1
    assert reported(bench.bound, bench.now + 2, (None,), "other") is None
    assert bench.most == 1
