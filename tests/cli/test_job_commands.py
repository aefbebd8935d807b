"""The commands that show and change one job: state, dead-letters, topology, set-cores, move."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.shell_completion import ShellComplete
from distributed import Client
from pyarrow import csv, feather

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.runtime.protocol.group_calls import MovedGroups

UNLUCKY = 13


def strict(batch):
    if pc.any(pc.equal(batch["key"], UNLUCKY)).as_py():
        raise ValueError(f"{UNLUCKY} is unlucky")
    return batch


@pytest.fixture(scope="module")
def numbers(cluster):
    """Return the name of a job that has ended, with state of two operators and dead letters of a third."""
    topology = de.Topology("numbers")
    keys = np.arange(1000) % 20
    rows = pa.table({"key": keys, "name": [f"n{key}" for key in keys], "value": np.arange(1000.0)})
    checked = topology.source("rows", de.sources.Arrow(rows, batch_rows=100)).map(strict)
    counts = {"count": agg.Count(), "largest": agg.Max("value")}
    checked.key_by("key").compute(counts, name="per_key", executors=1).sink(de.sinks.Collect(), name="updates")
    checked.key_by("name", "key").compute({"count": agg.Count()}, name="per_both", executors=2)
    with Client(cluster) as client:
        de.submit(topology, client, on_error="skip").wait(progress=False)
        yield "numbers"
        de.job("numbers", client).forget()


@pytest.fixture
def show(invoke, address, numbers):
    """Return a function that runs a command on that job."""

    def run(command, *arguments):
        return invoke(command, numbers, *arguments, "--scheduler", address)

    return run


# state


def test_state_prints_twenty_rows_unless_a_limit_is_given(show):
    shown = show("state", "per_both")
    assert shown.exit_code == 0
    head, *rows = shown.stdout.splitlines()
    assert head.split() == ["name", "key", "count"]
    assert len(rows) == 19
    few = show("state", "per_both", "--limit", 3)
    assert len(few.stdout.splitlines()) == 4
    assert few.stderr == "3 of 19 rows; see --limit and --output.\n"


def test_state_as_json_has_every_row_with_its_values(show):
    rows = json.loads(show("state", "per_key", "--json").stdout)
    assert len(rows) == 19
    assert {"key": 4, "count": 50, "largest": 984.0} in rows
    assert len(json.loads(show("state", "per_key", "--json", "--limit", 2).stdout)) == 2


@pytest.mark.parametrize(
    ("operator", "key", "expected"),
    [
        ("per_key", ["4"], {"key": 4, "count": 50, "largest": 984.0}),
        ("per_both", ["n4", "4"], {"name": "n4", "key": 4, "count": 50}),
    ],
)
def test_state_of_one_key_converts_it_to_the_type_of_its_column(show, operator, key, expected):
    options = [part for value in key for part in ("--key", value)]
    assert json.loads(show("state", operator, *options, "--json").stdout) == [expected]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (["13"], "operator 'per_key' of job 'numbers' has no state for '13'"),
        (["many"], "key column 'key' of 'per_key' is int64, which 'many' is not"),
        (["4", "5"], "operator 'per_key' has the key columns ('key',): pass one value for each, not 2"),
    ],
)
def test_state_of_a_wrong_key_is_an_error(show, key, message):
    refused = show("state", "per_key", *[part for value in key for part in ("--key", value)])
    assert (refused.exit_code, refused.output) == (1, f"Error: {message}\n")


def test_state_of_one_key_has_all_its_parts_of_windows(invoke, cluster, address):
    topology = de.Topology("several")
    rows = topology.source("rows", de.sources.Arrow(pa.table({"key": ["a"] * 5 + ["b"]})))
    rows.key_by("key").window(de.windows.count(8, 2)).compute({"count": agg.Count()}, name="parts")
    with Client(cluster) as client:
        job = de.submit(topology, client)
        job.wait(progress=False)
        shown = json.loads(invoke("state", "several", "parts", "--key", "a", "--json", "--scheduler", address).stdout)
        job.forget()
    assert [row["key"] for row in shown] == ["a"] * 3
    assert sorted(row["count"] for row in shown) == [1, 2, 2]


@pytest.mark.parametrize(
    ("ending", "read"), [("parquet", pq.read_table), ("csv", csv.read_csv), ("arrow", feather.read_table)]
)
def test_state_is_written_to_a_file(show, tmp_path, ending, read):
    path = tmp_path / "new" / f"state.{ending}"
    shown = show("state", "per_key", "--output", path)
    assert (shown.exit_code, shown.output) == (0, f"Wrote 19 rows to {path}.\n")
    found = {row["key"]: row["count"] for row in read(path).to_pylist()}
    assert found == {key: 50 for key in range(20) if key != UNLUCKY}


def test_file_of_unknown_ending_is_wrong_usage(show, tmp_path):
    refused = show("state", "per_key", "--output", tmp_path / "state.txt")
    assert refused.exit_code == 2
    assert "ends in none of .parquet, .csv, .arrow" in refused.output.replace("\n", " ")


@pytest.mark.parametrize(
    "arguments",
    [("state", "per_kye"), ("set-cores", "per_kye", 1), ("move", "per_kye", 0, "--task", 0)],
)
def test_unknown_operator_is_an_error_that_lists_the_operators(show, arguments):
    refused = show(*arguments)
    assert refused.exit_code == 1
    assert "no stateful operator 'per_kye': choose from ['per_both', 'per_key']" in refused.output


@pytest.mark.parametrize(
    "arguments",
    [("state", "x", "per_key"), ("dead-letters", "x"), ("topology", "x"), ("set-cores", "x", "per_key", 1),
     ("move", "x", "per_key", 0, "--task", 0), ("move-executor", "x", "per_key", 0, "tcp://a:1"),
     ("move-groups", "x", "per_key", 0, "--executor", 1)],
)  # fmt: skip
def test_unknown_job_is_an_error_that_lists_the_jobs(invoke, address, numbers, arguments):
    refused = invoke(*arguments, "--scheduler", address)
    # Tests before this one may have started another job of this module.
    known = re.fullmatch(r"Error: no job 'x': the cluster knows \[(.*)\]\n", refused.output)
    assert refused.exit_code == 1
    assert known is not None, refused.output
    assert "'numbers'" in known[1].split(", ")


# dead letters


def test_dead_letters_without_operator_are_counts(show):
    head, row = show("dead-letters").stdout.splitlines()
    assert (head.split(), row.split()) == (["operator", "rows"], ["strict", "50"])
    assert json.loads(show("dead-letters", "--json").stdout) == {"strict": 50}


def test_dead_letters_of_an_operator_are_rows_with_reasons(show):
    head, first = show("dead-letters", "strict", "--limit", 1).stdout.splitlines()
    assert head.split() == ["key", "name", "value", "__error"]
    assert first.split()[:2] == ["13", "n13"]
    assert first.endswith("ValueError: 13 is unlucky")


def test_dead_letters_are_written_to_a_file(show, tmp_path):
    path = tmp_path / "failed.parquet"
    assert show("dead-letters", "strict", "--output", path).output == f"Wrote 50 rows to {path}.\n"
    assert set(pq.read_table(path)["__error"].to_pylist()) == {"ValueError: 13 is unlucky"}


def test_operator_without_dead_letters_is_reported(show):
    shown = show("dead-letters", "per_key")
    assert (shown.exit_code, shown.output) == (0, "Operator 'per_key' of job 'numbers' has no dead letters.\n")


def test_dead_letters_of_unknown_operator_list_the_operators(show):
    refused = show("dead-letters", "stirct")
    assert refused.exit_code == 1
    assert "no operator 'stirct': choose from ['rows', 'strict', " in refused.output


def test_dead_letters_to_a_file_need_an_operator(show, tmp_path):
    refused = show("dead-letters", "--output", tmp_path / "failed.csv")
    assert refused.exit_code == 2
    assert "name the OPERATOR" in refused.output


# topology


def test_topology_is_a_tree_from_sources_to_sinks(show):
    root, source, *rest = show("topology").stdout.splitlines()
    assert root == "numbers  finished"
    assert source == "└── rows  source, with strict, 1 instance, 1,000 rows"
    indents = {line.lstrip("│ ├└─").split()[0]: len(line) - len(line.lstrip("│ ├└─")) for line in rest}
    assert indents == {
        "per_key": 8,
        "per_key[0]": 12,
        "updates": 12,
        "per_both": 8,
        "per_both[0]": 12,
        "per_both[1]": 12,
    }


def test_topology_with_tasks_lists_their_shards(show):
    lines = show("topology", "--tasks").stdout.splitlines()
    tasks = [line.lstrip("│ ├└─") for line in lines if " task " in line or "─ task" in line]
    assert tasks
    assert all(task.startswith("task ") and " shard" in task for task in tasks)


def test_topology_as_json_has_components_with_executors_and_shards(show):
    values = json.loads(show("topology", "--json").stdout)
    assert [(part["name"], part["kind"], part["inputs"]) for part in values["components"]] == [
        ("rows", "source", []),
        ("per_key", "compute", ["rows"]),
        ("per_both", "compute", ["rows"]),
        ("updates", "sink", ["per_key"]),
    ]
    [executor] = values["components"][1]["executors"]
    assert sorted(shard for task in executor["tasks"] for shard in task["shards"]) == [*range(256)]


def test_topology_is_drawn_as_svg(show, tmp_path):
    path = tmp_path / "numbers.svg"
    assert show("topology", "--svg", path).output == f"Wrote {path}.\n"
    texts = {element.text for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")}
    assert {"rows", "per_key", "per_both", "updates", "with strict", "2 executors"} <= texts


# cores and shards of a running job


@pytest.fixture(scope="module")
def running(cluster):
    """Return a running job whose one executor has two cores."""

    def keys():
        while True:
            yield {"key": np.arange(100)}

    topology = de.Topology("running")
    source = topology.source("keys", de.sources.Iterable(keys, rate=1_000))
    source.key_by("key").compute({"count": agg.Count()}, name="per_key", executors=1, shards=8)
    with Client(cluster) as client:
        yield de.submit(topology, client, cores={"per_key": 2}, balance_interval="1h")
        de.job("running", client).forget()


def owners(job):
    return {shard: row["task"] for row in job.assignment().to_dict("records") for shard in row["shards"]}


def moved_to(job, wait_until, expected):
    wait_until(lambda: expected.items() <= owners(job).items(), f"shards at {expected}")


def test_move_moves_shards_to_a_task(running, invoke, address, wait_until):
    moved_to(running, wait_until, {0: 0, 2: 0})
    moved = invoke("move", "running", "per_key", 0, 2, 4, "--task", 1, "--scheduler", address)
    assert (moved.exit_code, moved.output) == (0, "Shards 0, 2, 4 of per_key[0] move to task 1.\n")
    moved_to(running, wait_until, {0: 1, 2: 1, 4: 1})
    again = invoke("move", "running", "per_key", 0, "--task", 1, "--scheduler", address)
    assert (again.exit_code, again.output) == (0, "No shard has to move: they are where they should be.\n")


def test_move_of_all_shards_moves_those_that_are_elsewhere(running, invoke, address, wait_until):
    elsewhere = [shard for shard, task in owners(running).items() if task != 0]
    moved = invoke("move", "running", "per_key", "--all", "--task", 0, "--scheduler", address)
    assert moved.exit_code == 0, moved.output
    moved_to(running, wait_until, dict.fromkeys(elsewhere, 0))


def test_move_to_a_worker_without_tasks_names_the_workers_that_have_some(running, invoke, address):
    refused = invoke("move", "running", "per_key", 1, "--worker", "inproc://other", "--scheduler", address)
    assert refused.exit_code == 1
    assert "per_key[0] has no task on 'inproc://other', its tasks are on ['inproc://" in refused.output
    assert "dask elastic set-cores" in refused.output


def test_move_to_an_unknown_task_names_the_tasks(running, invoke, address):
    refused = invoke("move", "running", "per_key", "--all", "--task", 7, "--scheduler", address)
    assert refused.exit_code == 1
    assert "the executor's active tasks are [0, 1]; 7 more shards cannot move either\n" in refused.output


def test_move_of_an_unknown_executor_names_the_executors(running, invoke, address):
    refused = invoke("move", "running", "per_key", 0, "--task", 0, "--executor", 3, "--scheduler", address)
    assert (refused.exit_code, refused.output) == (1, "Error: operator 'per_key' has the executors 0 to 0, not 3\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--task", 0], "name the SHARDs"), ([0, "--all", "--task", 0], "name the SHARDs"),
     ([0], "either --task or --worker"), ([0, "--task", 0, "--worker", "a"], "either --task or --worker")],
)  # fmt: skip
def test_move_without_shards_or_without_one_target_is_wrong_usage(invoke, arguments, message):
    refused = invoke("move", "any", "per_key", *arguments)
    assert refused.exit_code == 2
    assert message in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["per_key", 0, "tcp://192.0.2.1:8000"], "there is no worker 'tcp://192.0.2.1:8000': choose from inproc://"),
     (["per_key", 3, "tcp://192.0.2.1:8000"], "operator 'per_key' has the executors 0 to 0, not 3"),
     (["per_kye", 0, "tcp://192.0.2.1:8000"], "no stateful operator 'per_kye'")],
)  # fmt: skip
def test_move_of_an_executor_that_cannot_begin_names_the_cause(running, invoke, address, arguments, message):
    refused = invoke("move-executor", "running", *arguments, "--scheduler", address)
    assert refused.exit_code == 1
    assert message in refused.output


def test_executor_moves_to_the_worker_that_is_named(invoke, address, monkeypatch, running):
    moved = []
    monkeypatch.setattr(de.Job, "move_executor", lambda job, *arguments: moved.append((job.name, *arguments)))
    done = invoke("move-executor", "running", "per_key", 0, "tcp://a:1", "--scheduler", address)
    assert (done.exit_code, done.output) == (0, "The home of per_key[0] is on tcp://a:1.\n")
    assert moved == [("running", "per_key", 0, "tcp://a:1")]


@pytest.mark.parametrize(
    ("given", "groups", "text"),
    [((7, 3, 4, 5, 3), [7, 3, 4, 5], "Key groups 3–5, 7 of per_key belong to executor 1"),
     ((2, "--migration", "synchronised"), [2], "Key group 2 of per_key belongs to executor 1")],
)  # fmt: skip
def test_key_groups_move_to_the_executor_that_is_named(running, invoke, address, monkeypatch, given, groups, text):
    asked = []

    def move(job, operator, groups, executor, migration):
        asked.append((job.name, operator, list(groups), executor, migration))
        return MovedGroups(len(groups), 2048, 0.0125, 0.1, 64)

    monkeypatch.setattr(de.Job, "move_groups", move)
    done = invoke("move-groups", "running", "per_key", *given, "--executor", 1, "--scheduler", address)
    assert done.exit_code == 0
    assert done.output == f"{text}: 2.00 kiB of state moved, and rows of a group waited for 12.50 ms at most.\n"
    assert asked == [("running", "per_key", groups, 1, "synchronised" if "--migration" in given else None)]


def test_key_groups_of_a_job_of_another_paradigm_stay(running, invoke, address):
    refused = invoke("move-groups", "running", "per_key", 0, "--executor", 1, "--scheduler", address)
    assert refused.exit_code == 1
    assert "job 'running' has the paradigm 'executor-centric': its key groups do not move" in refused.output


def test_set_cores_sets_the_number_or_the_cores_of_each_worker(running, invoke, address):
    [home] = set(running.assignment()["home"])
    for cores, number, text in (("1", 1, "1 core"), (f"{home}=2", 2, "2 cores")):
        done = invoke("set-cores", "running", "per_key", cores, "--scheduler", address)
        assert (done.exit_code, done.output) == (0, f"{text} for each executor of per_key.\n")
        assert running._describe().pinned == (("per_key", 0),)
        assert len(running.assignment().query("remote == False")) >= number
    done = invoke("set-cores", "running", "per_key", "auto", "--executor", 0, "--scheduler", address)
    assert done.output == "The control loop sets the cores of per_key[0].\n"
    assert running._describe().pinned == ()


@pytest.mark.parametrize("cores", [1, "auto"])
def test_cores_of_an_ended_job_are_not_said_to_change(show, cores):
    refused = show("set-cores", "per_key", cores)
    assert (refused.exit_code, refused.output) == (1, "Error: job 'numbers' has finished: its cores do not change\n")


@pytest.mark.parametrize("where", [["--task", 1], ["--worker", "tcp://10.0.0.2:40001"]])
def test_shards_of_an_ended_job_are_not_said_to_move(show, where):
    refused = show("move", "per_key", 0, *where)
    assert (refused.exit_code, refused.output) == (1, "Error: job 'numbers' has finished: its shards do not change\n")


def test_shards_of_a_job_that_ends_meanwhile_are_not_said_to_move(show, monkeypatch):
    tasks = pd.DataFrame([{"operator": "per_key", "executor": 0, "task": task, "shards": [task]} for task in (0, 1)])
    monkeypatch.setattr(de.Job, "assignment", lambda job: tasks)
    monkeypatch.setattr("dask_elastic.cli.changes.move.refuse_ended", lambda job, what: None)
    refused = show("move", "per_key", 0, "--task", 1)
    assert (refused.exit_code, refused.output) == (1, "Error: job 'numbers' has finished: its shards do not change\n")


@pytest.mark.parametrize("cores", [["many"], ["1", "2"], ["a=1", "2"], ["a=x"]])
def test_set_cores_that_are_no_number_is_wrong_usage(invoke, cores):
    refused = invoke("set-cores", "any", "per_key", *cores)
    assert refused.exit_code == 2
    assert "is neither a number, nor WORKER=NUMBER for each worker" in refused.output


# completion


def completed(command, incomplete, address, *arguments):
    """Return the words that the shell offers for the last argument."""
    from dask_elastic.cli.main import elastic

    words = [command, *arguments, "--scheduler", address]
    found = ShellComplete(elastic, {}, "dask elastic", "_DASK_COMPLETE").get_completions(words, incomplete)
    return [item.value for item in found]


def test_commands_jobs_operators_and_workers_are_completed(running, numbers, address, monkeypatch):
    # A busy machine may connect late.
    monkeypatch.setattr("dask_elastic.cli.job_completion.COMPLETION_SECONDS", 60.0)
    assert completed("status", "run", address) == ["running"]
    assert completed("state", "per", address, "numbers") == ["per_both", "per_key"]
    assert completed("dead-letters", "", address, "numbers") == ["strict"]
    assert completed("retire", "inproc", address) == [*running.client.nthreads()]
    assert completed("state", "", address, "no such job") == []


def test_completion_without_a_scheduler_completes_nothing(monkeypatch):
    monkeypatch.setattr("dask_elastic.cli.job_completion.COMPLETION_SECONDS", 0.2)
    assert completed("status", "", "tcp://127.0.0.1:9") == []
