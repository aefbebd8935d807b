from __future__ import annotations

import json
import pickle
import time
from dataclasses import replace

import pytest
from distributed import Client, LocalCluster

from dask_elastic.cli import status
from dask_elastic.cli.overview import overview
from dask_elastic.cli.status import as_text
from dask_elastic.cli.status_view import detail
from dask_elastic.cli.terminal.console import plain_text
from dask_elastic.cli.terminal.quantities import clock
from dask_elastic.runtime.client.job_view import one_line, summary
from dask_elastic.runtime.client.submission.installation import install
from dask_elastic.runtime.protocol.job_description import ControlView, JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import error_text
from dask_elastic.runtime.protocol.reports import ExecutorReport, InstanceRows
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus
from dask_elastic.vocab.epoch import HandoffProgress


def test_status_lists_all_jobs(invoke, address, endless):
    endless("first")
    endless("second").stop()
    shown = invoke("status", "--scheduler", address)
    assert shown.exit_code == 0
    page, head, first, second = shown.output.splitlines()
    assert page.startswith("Dashboard: http://")
    assert page.endswith("/elastic")
    assert head.split()[:3] == ["job", "status", "time"]
    assert [word.strip(",") for word in first.split()[:2]] == ["first", "running"]
    assert second.split()[:2] == ["second", "stopped"]


def test_status_of_one_job_lists_its_executors(invoke, address, endless):
    endless("detailed")
    shown = invoke("status", "detailed", "--scheduler", address)
    assert shown.exit_code == 0
    assert "per_key[0]" in shown.output
    assert address.partition("://")[0] in shown.output


def test_status_of_unknown_job_lists_known_jobs(invoke, address, endless):
    endless("here")
    refused = invoke("status", "ther", "--scheduler", address)
    assert refused.exit_code == 1
    assert refused.output == "Error: no job 'ther': the cluster knows ['here']\n"


def test_status_running_leaves_out_jobs_that_have_ended(invoke, address, endless):
    endless("first").stop()
    endless("second")
    shown = invoke("status", "--running", "--scheduler", address)
    assert [line.split()[0] for line in shown.output.splitlines()[2:]] == ["second"]
    jobs = json.loads(invoke("status", "--running", "--json", "--scheduler", address).stdout)["jobs"]
    assert [job["name"] for job in jobs] == ["second"]


def test_status_running_of_one_job_is_wrong_usage(invoke, address):
    refused = invoke("status", "any", "--running", "--scheduler", address)
    assert refused.exit_code == 2
    assert "--running" in refused.output


def test_status_as_json_has_the_values_of_the_table(invoke, address, endless):
    endless("measured")
    shown = invoke("status", "--json", "--scheduler", address)
    whole = json.loads(shown.stdout)
    assert whole["scheduler"] == address
    assert whole["dashboard"].endswith("/elastic")
    [job] = whole["jobs"]
    assert (job["name"], job["status"], job["error"], job["ended"]) == ("measured", "running", None, None)
    assert job["rows"] > 0
    [executor] = job["executors"]
    assert (executor["operator"], executor["executor"]) == ("per_key", 0)
    assert job["cores"] == executor["cores"] >= 1


def test_status_as_json_without_jobs_is_an_empty_list(invoke, address, client):
    assert json.loads(invoke("status", "--json", "--scheduler", address).stdout)["jobs"] == []


def test_status_of_a_cluster_that_hosts_nothing_names_no_page(invoke):
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        whole = json.loads(invoke("status", "--json", "--scheduler", address).stdout)
        assert whole == {"scheduler": address, "dashboard": None, "jobs": []}
        with Client(cluster, set_as_default=False) as client:
            install(client)
        assert json.loads(invoke("status", "--json", "--scheduler", address).stdout)["dashboard"].endswith("/elastic")


def test_watch_of_one_job_ends_when_the_job_ends(invoke, address, endless, monkeypatch):
    job = endless("watched")
    refreshes = []

    def stop_after_two(*values, **options):
        refreshes.append(values)
        if len(refreshes) == 2:
            job.stop()
        return as_text(*values, **options)

    monkeypatch.setattr(status, "as_text", stop_after_two)
    shown = invoke("status", "watched", "--watch", "--every", "0.1", "--json", "--scheduler", address)
    assert shown.exit_code == 0
    statuses = [json.loads(line)["jobs"][0]["status"] for line in shown.stdout.splitlines()]
    assert statuses[:2] == ["running", "running"]
    assert statuses[-1] == "stopped"


EXECUTOR = ExecutorReport(
    operator="counts", executor=0, node=0, cores=2, arrival_rate=10.0, throughput=10.0, service_rate=None,
    customer_rows=1.0, bytes_in=0.0, bytes_out=0.0, queue=3, sojourn=None, latency_p50=None, latency_p99=None,
    state_bytes=64, rows=5, moves=1, moves_across=0,
)  # fmt: skip


def described(**changes):
    """Return the description of a job; `changes` may be of the control loop's view, too."""
    control = {name: changes.pop(name) for name in [*changes] if hasattr(ControlView, name)}
    job = JobDescription(
        name="made", generation=1, status=Status.RUNNING, error=None, began=100.0, ended=None, oversubscribed=False,
        latency_target=0.05, planner="elasticutor", paradigm="executor-centric", dry_run=False, pinned=(),
        nodes=("tcp://a:1",), components=(), executors=(replace(EXECUTOR, executor=1, latency_p50=0.5), EXECUTOR),
        sources=(InstanceRows("numbers", 0, 40, 8.0),), sinks=(), event_times=(), dead_letters={}, refused=0,
        control=ControlView(**{"predicted": 0.04, **control}),
    )  # fmt: skip
    return replace(job, **changes)


def text(job):
    """Return a job in detail, as it is printed outside a terminal."""
    return plain_text(*detail(job))


def test_overview_aggregates_values_of_executors():
    values = overview(described())
    assert (values["cores"], values["queue"], values["moves"], values["source_rate"]) == (4, 6, 2, 8.0)
    assert (values["latency_p50"], values["latency_p99"]) == (0.5, None)
    assert [executor["id"] for executor in values["executors"]] == ["counts[0]", "counts[1]"]
    assert json.loads(json.dumps(values)) == values


def test_overview_sorts_executors_by_operator_and_number():
    shuffled = [replace(EXECUTOR, operator=name, executor=number) for name in "ba" for number in (10, 2, 0)]
    ids = [executor["id"] for executor in overview(described(executors=tuple(shuffled)))["executors"]]
    assert ids == ["a[0]", "a[2]", "a[10]", "b[0]", "b[2]", "b[10]"]


def test_handoff_is_shown_on_its_own_line():
    progress = HandoffProgress("arrived", 7, 8, 8_000, 1_000.0, 1, 2, 2**20, 2**10)
    shown = text(overview(described(handoffs=(progress,))))
    line = "arrived ← epoch 7, 8,000 rows, 1,000 rows/s, 1 of 2 wait, 1.00 MiB staged, 1.00 kiB on disk"
    assert f"Handoff: {line}" in shown
    assert f" · {line} · " in one_line(described(handoffs=(progress,), executors=(), began=time.time()))
    shown = text(overview(described(handoffs=(progress,), status=Status.FINISHED, ended=130.0)))
    assert "Handoff: arrived ← epoch 7, 8,000 rows\n" in shown


def test_overview_of_ended_job_has_its_duration_and_no_rate():
    values = overview(described(status=Status.FINISHED, ended=130.0))
    assert (values["seconds"], values["source_rate"]) == (30.0, 0.0)


def test_detail_shows_error_and_dead_letters():
    failed = overview(described(status=Status.FAILED, ended=130.0, error=pickle.dumps(ValueError("a bad row"))))
    assert failed["error"] == "a bad row"
    assert "Error: a bad row" in text(failed)
    skipping = overview(described(dead_letters={"strict": 1234}))
    assert "Dead letters of strict: 1,234 rows" in text(skipping)


def test_detail_shows_oversubscription():
    assert "running, oversubscribed  " in text(overview(described(oversubscribed=True)))


def test_list_marks_running_starved_job():
    assert "running, starved  " in text(overview(described(starved=1)))
    assert "starved  " not in text(overview(described(starved=1, status=Status.STOPPED, ended=130.0)))
    line = one_line(described(starved=1, executors=(), began=time.time()))
    assert "starved: lacks 1 core" in line.split(" · ")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "Latency target: 50.00 ms; predicted 40.00 ms"),
        (
            {"feasible": False, "predicted": None},
            "Latency target: 50.00 ms, which no allocation reaches; predicted –",
        ),
        ({"starved": 3}, "Starved: 3 cores missing"),
        ({"starved": 1}, "Starved: 1 core missing"),
        ({"bound": ("counts",)}, "GIL-bound operators: counts"),
        ({"dry_run": True}, "Dry run: decisions are not carried out"),
        ({"paradigm": "static"}, "Paradigm: static"),
        ({"decided": "It was too slow.", "decided_at": 60.5}, f"Last decision, {clock(60.5)}: It was too slow."),
        ({"control_error": "KeyError: 3"}, "Error in the control loop: KeyError: 3"),
    ],
)
def test_detail_shows_each_control_value_on_a_line(changes, line):
    assert line in text(overview(described(**changes))).splitlines()


def test_detail_without_target_has_no_line_for_it():
    assert "target" not in text(overview(described(latency_target=None)))


def test_infinite_numbers_are_null_in_json(invoke):
    from dask_elastic.cli.json_text import json_text

    assert json.loads(json_text(overview(described(predicted=float("inf")))))["predicted"] is None


def test_error_of_missing_class_names_the_class():
    data = pickle.dumps(ValueError("x")).replace(b"ValueError", b"MissingErr")
    with pytest.raises(AttributeError):
        pickle.loads(data)
    assert "MissingErr" in error_text(data)


def test_summary_of_many_executors_is_shortened():
    many = described(executors=tuple(replace(EXECUTOR, executor=n) for n in range(100)), began=time.time())
    assert "counts 200 cores of 100 executors" in one_line(many).split(" · ")
    lines = summary(many).splitlines()
    assert lines[1].startswith("  counts[0]: 2 cores")
    assert lines[-1] == "  and 60 more: see job.metrics()"
    few = described(executors=tuple(replace(EXECUTOR, executor=n) for n in range(3)), began=time.time())
    assert "counts 2+2+2 cores" in one_line(few).split(" · ")
    assert "more" not in summary(few)


COMPLETE = CheckpointDescription(7, began=60.0, seconds=0.25, nbytes=2048, held=0.01)
GIVEN_UP = CheckpointDescription(8, began=61.0, seconds=0.5, error="the disk is full\nand more")
CHECKPOINTS = CheckpointStatus("/checkpoints", 7, 2.5, COMPLETE, GIVEN_UP, 3, 2)


def test_status_shows_newest_checkpoint_restarts_and_error():
    values = overview(described(checkpoints=CHECKPOINTS))
    assert json.loads(json.dumps(values)) == values
    lines = text(values).splitlines()
    newest = "checkpoint 7 of 2.50 s ago, 2.00 kiB written in 250.00 ms, 2 restarts"
    assert f"Checkpoints in /checkpoints: {newest}" in lines
    assert f"Checkpoints given up: 3; at {clock(61.0)}, checkpoint 8 was given up: the disk is full" in lines


def test_one_line_has_checkpoint_restarts_and_error_until_a_newer_one_is_complete():
    parts = one_line(described(checkpoints=CHECKPOINTS, executors=())).split(" · ")
    assert {"checkpoint 7 of 2.50 s ago", "2 restarts", "checkpoint 8 was given up: the disk is full"} <= {*parts}
    later = replace(CHECKPOINTS, number=9, complete=replace(COMPLETE, number=9), restarts=0)
    shown = one_line(described(checkpoints=later, executors=()))
    assert "given up" not in shown
    assert "restart" not in shown
    assert "checkpoint" not in one_line(described(executors=()))


@pytest.mark.parametrize(("number", "said"), [(0, "no checkpoint yet"), (7, "resumed from checkpoint 7")])
def test_status_before_the_first_checkpoint_of_the_job(number, said):
    status = CheckpointStatus("/checkpoints", number, None, None, None, 0, 0)
    assert text(overview(described(checkpoints=status))).count(f"Checkpoints in /checkpoints: {said}\n") == 1
