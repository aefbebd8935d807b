from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from dask_elastic.papers.experiment import SCHEMA, Experiment, compare, run
from dask_elastic.papers.workloads import substreams
from dask_elastic.papers.workloads.node_loads import Size, drifted, varied_nodes
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import load_distance, variance
from dask_elastic.planning.registry import names, planner
from dask_elastic.vocab.errors import InvalidPlan, PlanningError


class Recorder:
    """Moves one group per period to the next bin, and records the arguments of each call."""

    def __init__(self):
        self.calls = []

    def objective(self, problem, bin, seed=0):
        return (0.0,)

    def plan(self, problem, seed=0):
        self.calls.append((problem.current.tolist(), seed))
        bin = problem.current.copy()
        bin[len(self.calls) % problem.groups] += 1
        return problem.placement(bin % problem.bins)


def sequence(periods=4, groups=3, bins=2, **change):
    return [PlacementProblem([1.0 + period] * groups, [0] * groups, bins, **change) for period in range(periods)]


def test_run_starts_each_period_from_previous_placement():
    recorder = Recorder()
    table = run(recorder, sequence(), name="recorder", seed=5)
    assert recorder.calls == [([0, 0, 0], 5), ([0, 1, 0], 6), ([0, 1, 1], 7), ([1, 1, 1], 8)]
    assert table["period"].to_pylist() == [0, 1, 2, 3]
    assert table["moves"].to_pylist() == [1, 1, 1, 1]
    assert table.schema.equals(SCHEMA)


def test_run_measures_placement_before_and_after_planning():
    problems = sequence(2)
    table = run(Recorder(), problems).to_pylist()
    after = np.array([0, 1, 0])
    assert table[0]["load_distance_before"] == load_distance(problems[0], problems[0].current)
    assert table[0]["load_distance"] == load_distance(problems[0], after)
    assert table[1]["load_distance_before"] == load_distance(problems[1], after)
    assert table[1]["variance_before"] == variance(problems[1], after)
    assert table[0]["variance_before"] > table[0]["variance"]


def test_run_with_every_plans_only_each_nth_period():
    recorder = Recorder()
    table = run(recorder, sequence(7), every=3)
    assert table["planned"].to_pylist() == [False, False, True, False, False, True, False]
    assert table["moves"].to_pylist() == [0, 0, 1, 0, 0, 1, 0]
    assert [seed for _, seed in recorder.calls] == [2, 5]


def test_step_without_planning_places_new_groups():
    experiment = Experiment(Recorder(), every=9)
    placement = experiment.step(PlacementProblem([2, 1], [-1, 0], 2))
    assert placement.bin.tolist() == [1, 0]
    assert placement.moves == 0


def test_run_takes_planning_seconds_from_clock_of_caller():
    ticks = iter(range(100))
    table = run(Recorder(), sequence(4), every=2, clock=lambda: float(next(ticks)))
    assert table["seconds"].to_pylist() == [None, 1.0, None, 1.0]
    assert run(Recorder(), sequence(2))["seconds"].to_pylist() == [None, None]


def test_moved_share_is_relative_to_all_state():
    table = run(Recorder(), sequence(1, state_bytes=[10, 30, 60])).to_pylist()
    assert table[0]["moved_bytes"] == 30
    assert table[0]["moved_share"] == 0.3


def test_compare_runs_all_planners_on_one_problem():
    problem = varied_nodes(1, Size(5, 50, 5), max_moves=5)
    options = {"milp": {"time_limit": None, "node_limit": 2}, "albic": {"time_limit": None, "node_limit": 2}}
    table = compare(problem, {name: planner(name, **options.get(name, {})) for name in names("placement")}, seed=3)
    assert table["planner"].to_pylist() == list(names("placement"))
    assert (table["moves"].to_numpy() <= 5).all()
    assert len(set(table["load_distance_before"].to_pylist())) == 1
    best = dict(zip(table["planner"].to_pylist(), table["load_distance"].to_pylist(), strict=True))
    assert min(best.values()) == best["milp"]
    assert compare(problem, {}).num_rows == 0


def test_flux_with_drifting_loads_stays_balanced():
    problem = varied_nodes(1, Size(10, 100, 5), varies=60.0, max_moves=5)
    experiment = Experiment(planner("flux"))
    for period in range(15):
        problem = replace(problem, current=experiment.step(problem).bin)
        problem = drifted(problem, period)
    table = experiment.table()
    assert table["load_distance_before"][0].as_py() > 25
    assert (table["load_distance"].to_numpy()[1:] < 2).all()


def test_run_on_recording_lowers_imbalance(data_path):
    table = pq.read_table(data_path("wiki_edits/edits.parquet"), columns=["ts", "page"])
    counts = substreams.recorded_counts(table["ts"], table["page"], substreams=100, seconds=1800.0)
    results = {
        name: run(planner(name), substreams.problems(counts, instances=5, memory=8), name, every=every)
        for name, every in (("eager", 1), ("correlation", 8))
    }
    staying = run(planner("eager"), substreams.problems(counts, instances=5), every=len(counts) + 1)
    for result in results.values():
        assert len(result) == len(counts)
        assert 0 < result["moved_share"].to_numpy().mean() < 0.5
    means = {name: result["variance_before"].to_numpy()[8:].mean() for name, result in results.items()}
    assert means["eager"] < staying["variance_before"].to_numpy()[8:].mean()
    # The planner that runs less often moves less state.
    moved = {name: result["moved_bytes"].to_numpy().sum() for name, result in results.items()}
    assert moved["correlation"] < moved["eager"]


def test_run_with_plan_over_budget_raises_invalid_plan():
    with pytest.raises(InvalidPlan, match="max_moves is 0"):
        run(Recorder(), sequence(1, max_moves=0))


def test_run_with_inconsistent_periods_raises_planning_error():
    with pytest.raises(PlanningError, match="period 1 has 2 groups, the one before 3"):
        run(Recorder(), [*sequence(1), *sequence(1, groups=2)])
    with pytest.raises(PlanningError, match="period 1 has 1 bins, but group 1 is on bin 1"):
        run(Recorder(), [*sequence(1), *sequence(1, bins=1)])
    with pytest.raises(PlanningError, match="every is 0"):
        Experiment(Recorder(), every=0)
