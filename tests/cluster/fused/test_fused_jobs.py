"""Jobs whose computes run in one task: their state at all homes, and what such jobs do not support."""

from __future__ import annotations

import contextlib
from collections import Counter

import pyarrow as pa
import pytest
from click.shell_completion import ShellComplete

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.cli.main import elastic
from dask_elastic.vocab.errors import PlanningError, SubmitError, TopologyError, UnknownOperator

RUN = {"timeout": 300, "progress": False}
AREAS, KINDS, ROWS = 40, 5, 1_200
LOANS = pa.table(
    {"area": [row * 7 % AREAS for row in range(ROWS)], "kind": [row % KINDS for row in range(ROWS)], "n": range(ROWS)}
)


@de.per_row(output={"area": pa.int64(), "seen": pa.int64()})
def numbered(row, state):
    state["seen"] = state.get("seen", 0) + 1
    return {"area": row["area"], "seen": state["seen"]}


def loans():
    """Return own logic by area and kind, and aggregates of its rows by area."""
    topology = de.Topology("loans")
    batches = [batch for start in range(0, ROWS, 100) for batch in LOANS.slice(start, 100).to_batches()]
    rows = topology.source("loans", de.sources.Arrow(pa.Table.from_batches(batches)))
    keyed = rows.key_by("area", "kind")
    first = keyed.compute(numbered, state={"seen": pa.int64()}, name="first", executors=2, shards=16, keeps=["area"])
    totals = first.key_by("area").compute({"rows": agg.Count(), "most": agg.Max("seen")}, name="areas")
    totals.sink(de.sinks.Collect(), name="out")
    return topology


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_state_of_fused_computes_is_read_at_their_homes(client, store):
    # More cores than the home of each executor has.
    job = de.submit(loans(), client, fuse=[("first", "areas")], cores={"first": 3}, state_store=store)
    job.wait(**RUN)
    wanted = Counter(LOANS["area"].to_pylist())
    pairs = Counter(zip(LOANS["area"].to_pylist(), LOANS["kind"].to_pylist(), strict=True))
    first, areas = (job.state(name).to_arrow().to_pylist() for name in ("first", "areas"))
    assert {(row["area"], row["kind"]): row["seen"] for row in first} == pairs
    assert len(first) == len(pairs)
    assert {row["area"]: row["rows"] for row in areas} == wanted
    assert len(areas) == AREAS
    assert job.state("areas").get(3) == next(row for row in areas if row["area"] == 3)
    assert job.state("first").get((3, 4)) == next(row for row in first if (row["area"], row["kind"]) == (3, 4))
    assert job.state("areas").get(AREAS) is None
    assert job.state("areas").head(3).num_rows == 3
    assert job.state("areas").to_dask()["rows"].sum().compute() == ROWS
    with pytest.raises(UnknownOperator, match="no stateful operator 'area'"):
        job.state("area").to_arrow()
    with pytest.raises(UnknownOperator, match="'areas' of job 'loans' runs in the tasks of 'first': name this"):
        job.set_cores("areas", 2)


def test_state_before_the_first_row_has_columns(client):
    topology = de.Topology("empty")
    rows = topology.source("rows", de.sources.Arrow(LOANS.slice(0, 0)))
    first = rows.key_by("area").compute({"rows": agg.Count()}, name="first")
    first.key_by("area").compute({"most": agg.Max("rows")}, name="second")
    job = de.submit(topology, client, fuse="auto")
    job.wait(**RUN)
    assert job.state("second").to_arrow().column_names == ["area", "most"]


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"cores": {"areas": 1}}, SubmitError, "'areas', which runs in the tasks of 'first'"),
        ({"fuse": [("loans", "first")]}, TopologyError, "'loans' is a source, not a compute"),
        ({"fuse": "all"}, TopologyError, "fuse is 'all'; give"),
    ],
)
def test_what_fused_jobs_lack_is_refused_at_submit(client, options, error, reason):
    with pytest.raises(error, match=reason):
        de.submit(loans(), client, **{"fuse": "auto"} | options)
    assert de.jobs(client) == []


@pytest.fixture
def held_loans(client):
    """A job of two fused computes, the second one with windows, that runs until it is stopped."""
    topology = de.Topology("held-loans")
    schema = pa.schema({"area": pa.int64(), "kind": pa.int64(), "at": pa.timestamp("us")})
    rows = topology.source("rows", de.sources.Push(schema, event_time="at"))
    first = rows.key_by("area", "kind").compute(
        lambda batch, state: batch, state={"seen": pa.int64()}, name="kinds", executors=1, keeps=["area"]
    )
    first.key_by("area").window("1h", time="at").compute({"n": agg.Count()}, name="hourly")
    return de.submit(topology, client, fuse="auto")


def test_fused_compute_is_explained_by_its_task(held_loans, wait_until):
    def explained(operator=None):
        with contextlib.suppress(PlanningError):
            return held_loans.explain(operator)

    found = wait_until(lambda: explained("hourly"), "the job is measured")
    assert [one.executor.component for one in found.executors] == ["kinds"]
    assert [*found.sections] == ["hourly", "windows of hourly", "component kinds"]
    assert found.sections["hourly"].startswith("runs in the tasks of 'kinds'")
    assert [*explained("kinds").sections] == ["component kinds"]
    assert [*explained().sections] == ["windows of hourly", "component kinds"]


def test_fused_computes_are_completed_where_commands_take_them(held_loans, client, monkeypatch):
    monkeypatch.setattr("dask_elastic.cli.job_completion.COMPLETION_SECONDS", 60.0)

    def completed(command):
        words = [command, held_loans.name, "--scheduler", client.scheduler.address]
        found = ShellComplete(elastic, {}, "dask elastic", "_DASK_COMPLETE").get_completions(words, "")
        return [item.value for item in found]

    assert completed("state") == completed("explain") == ["hourly", "kinds"]
    assert completed("set-cores") == completed("move") == ["kinds"]
