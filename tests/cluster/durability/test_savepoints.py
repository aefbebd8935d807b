"""Savepoints continue jobs, in other folders and with changed topologies; a stop with one loses and repeats no row."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic.vocab import errors

sys.path.insert(0, str(Path(__file__).parent))
from followed_jobs import ROWS, Gated, assert_each_row_once, counted, expected, followed, newest, written

sys.path.pop(0)


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_stop_with_savepoint_ends_behind_it_and_the_savepoint_continues_in_a_new_folder(client, wait_until, tmp_path):
    out, own, savepoint, gate = (tmp_path / name for name in ("out", "own", "savepoint", "gate"))
    job = de.submit(followed(out, rate=20_000, gate=gate), client, checkpoint=own, checkpoint_interval="1h")
    wait_until(lambda: job.metrics()["rows"].sum() > 2_000, "rows are processed")
    job.stop(savepoint=savepoint)
    assert job.status == "stopped"
    state = de.read_state(savepoint, "followed").sort_by("k")
    assert 2_000 <= pc.sum(state["n"]).as_py() < ROWS.num_rows
    visible = written(out).group_by("k").aggregate([("seq", "count")]).sort_by("k")
    assert visible.rename_columns(["k", "n"]).equals(state.select(["k", "n"]))
    assert de.read_state(own, "followed").sort_by("k").equals(state)
    before = files(savepoint)
    with pytest.raises(errors.SubmitError, match="is a savepoint, which stays as it is: pass checkpoint="):
        de.resume(savepoint, client)
    with pytest.raises(errors.SubmitError, match="is a savepoint, which stays as it is: pass checkpoint="):
        de.resume(savepoint, client, checkpoint=savepoint)
    job = de.resume(
        savepoint,
        client,
        topology=followed(out, rate=20_000, executors=4),
        checkpoint=tmp_path / "new",
        checkpoint_interval="1s",
    )
    job.wait(100, progress=False)
    assert counted(job) == expected()
    assert_each_row_once(out)
    assert files(savepoint) == before
    with pytest.raises(errors.SubmitError, match=r"has checkpoints already, up to .* or give another folder"):
        de.resume(savepoint, client, checkpoint=tmp_path / "new")
    fewer = de.resume(tmp_path / "new", client, topology=followed(out, rate=40_000, executors=1), name="fewer")
    fewer.wait(100, progress=False)
    assert counted(fewer) == expected()
    assert_each_row_once(out)


def test_job_goes_on_after_its_savepoint_and_both_continue_separately(client, wait_until, tmp_path):
    out, own, savepoint, gate = (tmp_path / name for name in ("out", "own", "savepoint", "gate"))
    topology = followed(out, rate=20_000, gate=gate)
    job = de.submit(topology, client, checkpoint=own, checkpoint_interval="300ms", checkpoint_keep=1)
    wait_until(lambda: job.metrics()["rows"].sum() > 2_000, "rows are processed")
    number = job.savepoint(savepoint)
    with pytest.raises(errors.CheckpointError, match="Give each savepoint a new folder"):
        job.savepoint(savepoint)
    wait_until(lambda: newest(job) > number + 1, "later checkpoints are complete")
    gate.touch()
    job.wait(100, progress=False)
    with pytest.raises(errors.JobEnded):
        job.savepoint(tmp_path / "late")
    assert counted(job) == expected()
    topology = followed(out, rate=40_000)
    again = de.resume(savepoint, client, topology=topology, checkpoint=tmp_path / "new")
    again.wait(100, progress=False)
    assert counted(again) == expected()
    # The rows behind the savepoint are written again: to the sinks it is another run.
    rows = written(out)
    assert ROWS.num_rows < rows.num_rows < 2 * ROWS.num_rows
    assert rows.group_by(["k", "seq"]).aggregate([]).num_rows == ROWS.num_rows


def test_job_continues_if_its_savepoint_cannot_be_written(client, tmp_path):
    out, savepoint, gate = (tmp_path / name for name in ("out", "savepoint", "gate"))
    savepoint.mkdir()
    (savepoint / "state").write_text("not a folder")
    topology = followed(out, rate=20_000, gate=gate)
    job = de.submit(topology, client, checkpoint=tmp_path / "own", checkpoint_interval="1h")
    assert job.checkpoint()
    with pytest.raises(errors.SubmitError, match="take a savepoint"):
        de.resume(tmp_path / "own", client, checkpoint=tmp_path / "other", name="other")
    with pytest.raises(errors.CheckpointError, match=r"cannot read .*Not a directory"):
        job.stop(savepoint=savepoint)
    assert not list((savepoint / "topology").iterdir())
    gate.touch()
    job.wait(100, progress=False)
    assert counted(job) == expected()
    assert_each_row_once(out)


def test_savepoint_continues_with_changed_aggregates_and_with_operators_added_and_dropped(client, wait_until, tmp_path):
    rows, agg, gate = ROWS.slice(0, 10_000), de.aggregate, tmp_path / "gate"

    def topology(aggregates, other):
        made = de.Topology("changing")
        keyed = made.source("rows", Gated(rows, gate, rate=10_000, batch_rows=500)).key_by("k")
        keyed.compute(aggregates, name="per_key", executors=2, shards=8)
        keyed.compute({"n": agg.Count()}, name=other, executors=1)
        return made

    before = {"mean": agg.Mean("v"), "least": agg.Min("v")}
    savepoint = tmp_path / "savepoint"
    job = de.submit(topology(before, "former"), client, checkpoint=tmp_path / "own")
    wait_until(lambda: job.metrics()["rows"].sum() > 500, "rows are processed")
    job.stop(savepoint=savepoint)
    gate.touch()
    done = pc.sum(de.read_state(savepoint, "former")["n"]).as_py()
    now = {"low": agg.Min("v"), "n": agg.Count("v"), "sum": agg.Sum("v"), "mean": agg.Mean("v")}
    new = {"checkpoint": tmp_path / "new"}
    with pytest.raises(errors.SubmitError, match=r"'per_key': most=Max\('v'\) cannot be computed from the state of"):
        de.resume(savepoint, client, topology=topology({"most": agg.Max("v")}, "former"), **new)
    with pytest.raises(errors.SubmitError, match="has 'former', which the topology lacks"):
        de.resume(savepoint, client, topology=topology(now, "added"), **new)
    again = de.resume(savepoint, client, topology=topology(now, "added"), drop=["former"], **new)
    again.wait(100, progress=False)
    state = again.state("per_key").to_arrow().sort_by("k")
    wanted = rows.group_by("k").aggregate([("v", "min"), ("v", "count"), ("v", "sum"), ("v", "mean")]).sort_by("k")
    for column, aggregated in zip(now, ("v_min", "v_count", "v_sum", "v_mean"), strict=True):
        assert state[column].to_pylist() == wanted[aggregated].to_pylist()
    assert pc.sum(again.state("added").to_arrow()["n"]).as_py() == rows.num_rows - done
