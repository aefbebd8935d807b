from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from dask_elastic.cli.plan import HEAD
from dask_elastic.cli.problem_file import load, save
from dask_elastic.papers.figures import catalogue
from dask_elastic.papers.figures.figure import Figure
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.registry import names
from dask_elastic.testing.planners import problems
from dask_elastic.vocab.errors import PlanningError

ENDINGS = ("json", "parquet")
ARRAYS = ("load", "current", "state_bytes", "draining", "operator", "history", "size", "pinned", "capacity")


def assert_same(one, other):
    for name in ARRAYS:
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None) == (second is None), name
        if first is not None:
            assert first.dtype == second.dtype, name
            assert first.shape == second.shape, name
            assert (first == second).all(), name
    assert (one.traffic is None) == (other.traffic is None)
    if one.traffic is not None:
        assert (one.traffic != other.traffic).nnz == 0
    assert (one.bins, one.max_moves, one.max_cost) == (other.bins, other.max_moves, other.max_cost)


@pytest.mark.parametrize("ending", ENDINGS)
def test_placement_problem_is_read_as_written(ending, tmp_path):
    path = tmp_path / f"problem.{ending}"
    for problem in problems(7, count=40):
        save(problem, path)
        assert_same(problem, load(path))


@pytest.mark.parametrize("ending", ENDINGS)
def test_placement_problem_with_every_field_is_read_as_written(ending, tmp_path):
    third = 1 / 3
    full = PlacementProblem(
        [[third, 2], [1e-300, 0]],
        [-1, 1],
        2,
        state_bytes=[0.1, 2**53 + 2],
        capacity=[[1, 2], [3, third]],
        draining=[0],
        traffic=sp.coo_matrix(([third], ([1], [0])), (2, 2)),
        operator=[5, -1],
        history=[[1, 2], [third, 4], [5, 6]],
        max_moves=0,
        max_cost=0.1,
        size=[0, 2],
        pinned=[1],
    )
    for problem in (
        full,
        PlacementProblem([], np.zeros(0, dtype=int), 1),
        PlacementProblem(np.zeros((0, 2)), np.zeros(0, dtype=int), 1, capacity=[[1, 2]], history=np.zeros((3, 0))),
        PlacementProblem([1], [0], 1, traffic=sp.csr_matrix((1, 1)), max_cost=0),
    ):
        path = tmp_path / f"PROBLEM.{ending.upper()}"
        save(problem, path)
        assert_same(problem, load(path))


def test_json_problem_written_by_hand_is_loaded(tmp_path):
    path = tmp_path / "hand.json"
    path.write_text(
        '{"load": [4, 4, 2], "current": [0, 0, 1], "bins": 2, "max_moves": 1, "draining": [],'
        ' "traffic": {"source": [0], "target": [2], "bytes_per_second": [10]}}'
    )
    problem = load(path)
    assert problem.groups == 3
    assert problem.traffic[0, 2] == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[1, 2]", "JSON list, not an object"),
        ('{"load": [1], "current": [0]}', "no 'bins'; load, current, bins are required"),
        ('{"load": [1], "current": [0], "bins": 1, "loads": 3}', "'loads', which no problem has"),
        ('{"load": [NaN], "current": [0], "bins": 1}', r"load at \(0,\) is nan"),
        ('{"load": [-1], "current": [0], "bins": 1}', r"load at \(0,\) is -1.0"),
        ('{"load": [1], "current": [3], "bins": 2}', "current bin of group 0 is 3: give −1 to 1"),
        ('{"load": [1], "current": [0.5], "bins": 2}', "current has type float64"),
        ('{"load": [1, [2]], "current": [0, 0], "bins": 2}', "setting an array element"),
        ('{"load": ["much"], "current": [0], "bins": 2}', "could not convert string"),
        ('{"load": {}, "current": [0], "bins": 2}', "float"),
        ('{"load": [1], "current": [0], "bins": "two"}', "bins is 'two'"),
        ('{"load": [1], "current": [0], "bins": 1, "max_moves": "one"}', "holds no placement problem"),
        ('{"load": [1], "current": [0], "bins": 1, "max_cost": -1}', "max_cost is -1"),
        ('{"load": [1], "current": [0], "bins": 1, "traffic": [[1]]}', "traffic is no object of source, target"),
        (
            '{"load": [1], "current": [0], "bins": 1,'
            ' "traffic": {"source": [0], "target": [1], "bytes_per_second": [1]}}',
            "traffic has target 1: groups are 0 to 0",
        ),
        (
            '{"load": [1], "current": [0], "bins": 1,'
            ' "traffic": {"source": [0], "target": [], "bytes_per_second": [1]}}',
            "1 sources, 0 targets and 1 rates",
        ),
    ],
)
def test_invalid_json_problem_is_refused_with_reason(text, message, tmp_path, invoke):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(PlanningError, match=message):
        load(path)
    refused = invoke("plan", "compare", path, "--planner", "flux")
    assert refused.exit_code == 1
    assert refused.output.startswith(f"Error: {path} holds no placement problem: ")
    assert len(refused.output.splitlines()) == 1


def test_invalid_parquet_problem_is_refused_with_reason(tmp_path):
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"nothing")
    with pytest.raises(PlanningError, match="holds no placement problem"):
        load(path)
    pq.write_table(pa.table({"load": [1.0]}), path)
    with pytest.raises(PlanningError, match="no metadata 'dask_elastic'"):
        load(path)
    good = PlacementProblem([1, 1], [0, 0], 1, traffic=[[0, 1], [0, 0]])
    save(good, path)
    table = pq.read_table(path)
    for change, message in (
        (table.drop_columns(["sends_to"]), "bytes_per_second' alone"),
        (table.drop_columns(["current"]), "no 'current'"),
        (table.append_column("cost", [[1, 2]]), "'cost', which no problem has"),
        (table.set_column(0, "load", [[1.0, None]]), "column 'load' has nulls"),
        (
            table.set_column(table.column_names.index("sends_to"), "sends_to", [[[0], [0]]]),
            "lists of different lengths",
        ),
    ):
        pq.write_table(change, path)
        with pytest.raises(PlanningError, match=message):
            load(path)


def test_problem_file_with_unknown_ending_is_refused(tmp_path, invoke):
    for path in (tmp_path / "problem.csv", tmp_path / "problem"):
        with pytest.raises(PlanningError, match=r"give a file that ends in \.json or \.parquet"):
            save(PlacementProblem([1], [0], 1), path)
        path.write_text("load,current")
        assert "ends in" in invoke("plan", "compare", path).output
    assert invoke("plan", "compare", tmp_path / "missing.json").exit_code == 2


@pytest.fixture
def problem_path(tmp_path):
    path = tmp_path / "problem.json"
    traffic = sp.coo_matrix(([8.0, 2.0], ([0, 1], [3, 4])), (6, 6))
    save(
        PlacementProblem(
            [4, 4, 4, 2, 2, 2], [0, 0, 0, 1, 1, 1], 2, state_bytes=[1000] * 6, traffic=traffic, max_moves=2
        ),
        path,
    )
    return path


def columns(output):
    """Return the cells of the table by planner, aligned as they stand."""
    lines = output.splitlines()
    head = lines[1]
    starts = [head.index(name) + len(name) for name in ("distance", "imbalance", "moves", "bytes", "collocation")]
    for line in lines[2:]:
        for end in starts:
            assert len(line) < end or line[end - 1] != " ", f"{line!r} is not aligned at {end}"
    return {line.split()[0]: line.split() for line in lines[2:]}


def test_compare_without_options_prints_aligned_table_of_all_planners(problem_path, invoke):
    done = invoke("plan", "compare", problem_path)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == "6 groups on 2 bins, mean load 9; at most 2 moves"
    rows = columns(done.output)
    assert [name for name in rows if name != "(as"] == list(names("placement"))
    assert rows["(as"][3:6] == ["3", "1.3333", "0"]
    distance, imbalance, moves, moved, together, proven, milliseconds = rows["milp"][1:]
    assert (distance, imbalance, proven) == ("1", "1.1111", "yes")
    assert int(moves) <= 2
    assert moved == f"{1000 * int(moves):,}"
    assert together.endswith("%")
    assert float(milliseconds) > 0


def test_compare_example_of_cli_page_prints_documented_output(tmp_path, invoke, monkeypatch):
    section = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8").split("\n## plan\n")[1]
    blocks = [block.partition("\n")[::2] for block in section.split("```")[1::2]]
    problem, command, printed = (body for _, body in blocks[:3])
    assert [language for language, _ in blocks[:3]] == ["json", "bash", ""]
    monkeypatch.chdir(tmp_path)
    Path("problem.json").write_text(problem)
    done = invoke(*command.split()[2:])
    assert done.exit_code == 0, done.output
    # All columns except the milliseconds; a row without them keeps its last cell.
    documented, shown = (
        [line.split()[: len(HEAD) - 1] for line in text.strip().splitlines()[2:]] for text in (printed, done.output)
    )
    assert documented == shown
    assert printed.splitlines()[0] == done.output.splitlines()[0]


def test_compare_with_planners_and_options_runs_only_these(problem_path, invoke):
    done = invoke(
        "plan", "compare", problem_path, "--planner", "flux", "--planner", "milp", "--option", "flux.passes=1",
        "--option", "time_limit=null", "--option", "node_limit=3", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert [row["planner"] for row in found] == ["flux", "milp"]
    assert found[1]["load_distance"] <= found[0]["load_distance"]
    assert found[0]["moves"] == 1


def test_compare_with_same_seed_prints_same_result(tmp_path, invoke):
    path = tmp_path / "new.json"
    save(PlacementProblem([1] * 40, [-1] * 40, 4), path)

    def distance(seed):
        done = invoke("plan", "compare", path, "--planner", "consistent-hash", "--seed", seed, "--json")
        return json.loads(done.output)[0]["load_distance"]

    assert distance(1) == distance(1)
    assert len({distance(seed) for seed in range(6)}) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--planner", "fluks"), "'fluks' is not one of"),
        (("--option", "speed=3"), "no chosen planner has an option 'speed'"),
        (("--planner", "flux", "--option", "time_limit=3"), "flux: passes"),
        (
            ("--planner", "flux", "--option", "milp.gap=3"),
            "is for planner 'milp', which does not run: planners are flux",
        ),
        (("--option", "speed"), "no NAME=VALUE"),
        (("--option", "=3"), "no NAME=VALUE"),
        (("--seed", "-1"), "-1 is not in the range"),
    ],
)
def test_compare_with_invalid_options_is_refused_with_reason(options, message, problem_path, invoke):
    refused = invoke("plan", "compare", problem_path, *options)
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("planner", "option", "message"),
    [
        ("milp", "gap=2", "gap is 2: give 0 or more, and less than 1."),
        ("flux", "passes=many", "passes is 'many': give 1 or more, or None to repeat while it helps."),
    ],
)
def test_compare_with_invalid_option_value_prints_error(planner, option, message, problem_path, invoke):
    refused = invoke("plan", "compare", problem_path, "--planner", planner, "--option", option)
    assert refused.exit_code == 1
    assert refused.output == f"Error: {message}\n"


def test_compare_prints_constraints_in_first_line(tmp_path, invoke):
    path = tmp_path / "bound.parquet"
    save(PlacementProblem([1, 1], [0, 1], 3, draining=[1, 2], max_cost=2000), path)
    done = invoke("plan", "compare", path, "--planner", "flux")
    assert done.output.splitlines()[0] == (
        "2 groups on 3 bins, mean load 2; 2 bins are draining; at most 2,000 bytes moved"
    )


@pytest.fixture
def two_figures(monkeypatch):
    made = []

    def compute(name):
        def run(seed, quick):
            made.append((name, seed, quick))
            return pa.table({"x": [1, 2], "y": [seed, seed + 1]})

        return run

    def draw(table, axes):
        axes.plot(table["x"].to_numpy(), table["y"].to_numpy())

    found = {name: Figure(name, f"A paper, {name}", "A title", compute(name), draw) for name in ("first", "second")}
    monkeypatch.setattr(catalogue, "figures", lambda: found)
    return made


def test_figures_without_names_writes_all_figures(two_figures, tmp_path, invoke):
    out = tmp_path / "new" / "out"
    done = invoke("plan", "figures", "--out", out, "--quick", "--seed", 3)
    assert done.exit_code == 0, done.output
    assert two_figures == [("first", 3, True), ("second", 3, True)]
    assert sorted(path.name for path in out.iterdir()) == ["first.parquet", "first.png", "second.parquet", "second.png"]
    assert pq.read_table(out / "first.parquet")["y"].to_pylist() == [3, 4]
    assert str(Path("out") / "second.png") in done.output


def test_figures_with_names_writes_each_once(two_figures, tmp_path, invoke):
    assert invoke("plan", "figures", "second", "second", "--out", tmp_path).exit_code == 0
    assert two_figures == [("second", 0, False)]


def test_figures_list_prints_names_without_computation(two_figures, invoke):
    done = invoke("plan", "figures", "--list")
    assert done.output.splitlines() == [
        "figure  source           what it shows",
        "first   A paper, first   A title",
        "second  A paper, second  A title",
    ]
    assert two_figures == []


def test_figures_with_unknown_name_fails_before_computation(two_figures, tmp_path, invoke):
    refused = invoke("plan", "figures", "first", "thrid", "--out", tmp_path)
    assert refused.exit_code == 2
    assert "no figure is named 'thrid': choose among first, second" in " ".join(refused.output.split())
    assert two_figures == []


def test_plan_help_shows_examples(invoke):
    for command in ((), ("compare",), ("figures",)):
        shown = invoke("plan", *command, "--help")
        assert shown.exit_code == 0
        assert f"dask elastic plan {' '.join(command)}".strip() in shown.output


def test_compare_with_planner_without_solver_is_refused(problem_path, invoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    done = invoke("plan", "compare", problem_path, "--planner", "milp")
    assert done.exit_code == 1
    assert "planner 'milp' needs highspy: pip install 'dask-elastic[planners]'" in done.output


def test_compare_without_planner_names_omits_planners_without_solver(problem_path, invoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    done = invoke("plan", "compare", problem_path)
    assert done.exit_code == 0, done.output
    assert "left out: planner 'milp' needs highspy" in done.output
    rows = columns(done.stdout)
    assert {"flux", "cola"} <= set(rows)
    assert not {"milp", "albic"} & {name for name in rows if rows[name]}
