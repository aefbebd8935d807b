from __future__ import annotations

import itertools
import shutil
import threading
from dataclasses import replace
from datetime import datetime

import cloudpickle
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dask_elastic.connectors import sinks
from dask_elastic.connectors.sinks import delta_table
from dask_elastic.testing import check_sink
from dask_elastic.topology import SinkContext
from dask_elastic.vocab.errors import SchemaMismatch, SinkError, TopologyError


def context(generation=0, instance=0, checkpoints=True):
    return SinkContext(
        "job/1",
        "out",
        node=instance,
        instance=instance,
        run="0123456789ab",
        checkpoints=checkpoints,
        generation=generation,
        restored=generation > 0,
    )


def numbers(start, stop):
    return pa.RecordBatch.from_pydict({"n": pa.array(range(start, stop), pa.int64())})


def rows(path):
    return sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist()) if DeltaTable.is_deltatable(str(path)) else []


def files(path):
    return sorted(file.name for file in path.glob("*.parquet"))


def test_delta_sink_shows_each_row_once(tmp_path):
    tables = itertools.count()

    def read(sink):
        return DeltaTable(sink.table).to_pyarrow_table() if DeltaTable.is_deltatable(sink.table) else []

    check_sink(lambda: sinks.Delta(tmp_path / str(next(tables)), rows_per_file=10), read)


def test_job_that_continues_from_an_earlier_checkpoint_keeps_committed_files(tmp_path):
    writer = sinks.Delta(tmp_path).open(context())
    prepared = []
    for checkpoint in (6, 7):
        writer.write(numbers(checkpoint, checkpoint + 1))
        prepared.append(writer.prepare(checkpoint))
        writer.commit(prepared[-1])
    writer.write(numbers(8, 9))
    writer.prepare(8)
    assert len(files(tmp_path)) == 3
    writer = sinks.Delta(tmp_path).open(context(generation=1))
    writer.recover(prepared[:1], 6)
    assert rows(tmp_path) == [6, 7]
    assert len(files(tmp_path)) == 2
    # Sinks show the rows since then again.
    writer.write(numbers(7, 9))
    writer.commit(writer.prepare(9))
    assert rows(tmp_path) == [6, 7, 7, 8]


def test_job_without_checkpoints_adds_full_files_and_the_last_one_at_the_end(tmp_path):
    writer = sinks.Delta(tmp_path, rows_per_file=3).open(context(checkpoints=False))
    writer.write(numbers(0, 4))
    assert rows(tmp_path) == [0, 1, 2]
    writer.close()
    writer.close()
    assert rows(tmp_path) == [0, 1, 2, 3]
    assert DeltaTable(tmp_path).version() == 2


def test_aborted_writer_leaves_no_file(tmp_path):
    writer = sinks.Delta(tmp_path, rows_per_file=3).open(context())
    writer.write(numbers(0, 5))
    writer._files.write_group()
    assert len(files(tmp_path)) == 2
    writer.abort()
    assert files(tmp_path) == []
    assert rows(tmp_path) == []


def test_recovery_deletes_data_files_of_incomplete_checkpoints(tmp_path):
    sink = sinks.Delta(tmp_path)
    writer = sink.open(context())
    prepared = []
    for checkpoint in (1, 2):
        writer.write(numbers(checkpoint, checkpoint + 1))
        prepared.append(writer.prepare(checkpoint))
    other = sink.open(context(1, instance=1))
    other.recover([], 1)
    other.write(numbers(7, 8))
    later = other.prepare(2)
    sink.open(context(1)).recover(cloudpickle.loads(cloudpickle.dumps(prepared[:1])), 1)
    assert rows(tmp_path) == [1]
    assert len(files(tmp_path)) == 2
    assert [file.path for file in later.files if "-g1-c1-1-" in file.path] == [files(tmp_path)[1]]
    other.commit(later)
    assert rows(tmp_path) == [1, 7]
    assert sink.open(context(1)).prepare(2) is None


def test_files_of_a_transaction_that_were_compacted_are_not_added_again(tmp_path):
    sink = sinks.Delta(tmp_path, rows_per_file=2)
    writer = sink.open(context())
    writer.write(numbers(0, 6))
    prepared = writer.prepare(1)
    writer.commit(prepared)
    assert DeltaTable(tmp_path).optimize.compact()["numFilesRemoved"] == 3
    sink.open(context(1)).recover([prepared], 1)
    assert rows(tmp_path) == list(range(6))


def test_table_that_was_deleted_fails_the_commit(tmp_path):
    sink = sinks.Delta(tmp_path / "table")
    writer = sink.open(context())
    writer.write(numbers(0, 1))
    prepared = writer.prepare(1)
    shutil.rmtree(tmp_path / "table")
    with pytest.raises(SinkError, match=r"job 'job/1', table .*: cannot be committed: "):
        sink.open(context(1)).recover([prepared], 1)


def test_recovery_deletes_data_files_that_the_job_left_under_another_name(tmp_path):
    sink = sinks.Delta(tmp_path)
    writer, other = (sink.open(replace(context(), job="before", operator=operator)) for operator in ("out", "other"))
    for one in (writer, other):
        one.write(numbers(1, 2))
        one.commit(one.prepare(1))
        one.write(numbers(2, 3))
        one.prepare(2)
    assert len(files(tmp_path)) == 4
    sink.open(context(1)).recover([], 1)
    assert rows(tmp_path) == [1, 1]
    assert len(files(tmp_path)) == 3


def test_rows_before_the_checkpoint_are_added_to_the_table_of_before_or_where_it_was_moved(tmp_path):
    before, other, moved = (tmp_path / name for name in ("before", "other", "moved"))
    writer = sinks.Delta(before).open(context())
    prepared = []
    for checkpoint in (1, 2, 3):
        writer.write(numbers(checkpoint, checkpoint + 1))
        prepared.append(cloudpickle.loads(cloudpickle.dumps(writer.prepare(checkpoint))))
    writer.commit(prepared[0])
    write_deltalake(other, pa.table(numbers(7, 8)))
    sinks.Delta(other).open(context(1)).recover(prepared[:2], 2)
    assert (rows(before), rows(other)) == ([1, 2], [7])
    before.rename(moved)
    sinks.Delta(moved).open(context(2)).recover(prepared, 3)
    assert rows(moved) == [1, 2, 3]
    assert not before.exists()
    shutil.rmtree(moved)
    gone = r"(?s)before .*/before: cannot be committed: .*\. If it no longer exists, resume .* drop=\['out'\]"
    with pytest.raises(SinkError, match=gone):
        sinks.Delta(other).open(context(3)).recover(prepared, 3)


def test_writers_that_start_together_create_the_table_once(tmp_path):
    sink = sinks.Delta(tmp_path / "new")
    start = threading.Barrier(4)
    failures = []

    def write(instance):
        try:
            writer = sink.open(context(instance=instance))
            start.wait()
            writer.write(numbers(instance, instance + 1))
            writer.commit(writer.prepare(1))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(instance,)) for instance in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows(tmp_path / "new") == [0, 1, 2, 3]


def test_writers_that_commit_one_transaction_together_add_it_once(tmp_path):
    sink = sinks.Delta(tmp_path)
    writer = sink.open(context())
    writer.write(numbers(0, 3))
    prepared = writer.prepare(1)
    start = threading.Barrier(3)

    def commit(generation):
        other = sink.open(context(generation))
        start.wait()
        other.commit(prepared)

    threads = [threading.Thread(target=commit, args=(generation,)) for generation in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(tmp_path) == [0, 1, 2]


def test_rows_are_appended_and_cast_to_the_types_of_an_existing_table(tmp_path):
    write_deltalake(
        tmp_path, pa.table({"n": pa.array([7], pa.int64()), "at": pa.array([0], pa.timestamp("us", "UTC"))})
    )
    writer = sinks.Delta(tmp_path).open(context(checkpoints=False))
    at = pa.array([datetime(2013, 1, 1)], pa.timestamp("us", "UTC"))
    writer.write(pa.RecordBatch.from_pydict({"at": at, "n": pa.array([8], pa.int16())}))
    writer.close()
    assert rows(tmp_path) == [7, 8]
    with pytest.raises(SchemaMismatch, match=r"table .* missing: 'at'; unexpected: 'm'"):
        sinks.Delta(tmp_path).open(context()).write(pa.RecordBatch.from_pydict({"n": [1], "m": [1]}))


def test_tables_that_other_writers_must_not_change_are_refused(tmp_path):
    table = pa.table({"n": [1], "day": ["a"]})
    write_deltalake(tmp_path / "parts", table, partition_by="day")
    write_deltalake(tmp_path / "checked", table)
    DeltaTable(tmp_path / "checked").alter.add_constraint({"positive": "n > 0"})
    for name, message in (("parts", "partitioned by day"), ("checked", r"delta\.constraints\.positive")):
        with pytest.raises(SinkError, match=rf"sink 'out' of job 'job/1', table .*{name}: .*{message}"):
            sinks.Delta(tmp_path / name).open(context()).write(table.to_batches()[0])


def test_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkError, match=r"table .*file/out: cannot be opened"):
        sinks.Delta(tmp_path / "file" / "out").open(context()).write(numbers(0, 1))
    with pytest.raises(SinkError, match="cannot be opened"):
        sinks.Delta("nonsense://x").open(context()).write(numbers(0, 1))


def test_invalid_options_of_a_delta_sink_are_refused(tmp_path):
    with pytest.raises(TopologyError, match="rows_per_file is 0"):
        sinks.Delta(tmp_path, rows_per_file=0)
    with pytest.raises(TopologyError, match="path or URL of a table, not 3"):
        sinks.Delta(3)
    with pytest.raises(SinkError, match=r"7 is not a transaction of sinks\.Delta"):
        sinks.Delta(tmp_path).open(context()).commit(7)


def test_files_are_written_through_the_storage_of_the_delta_library(tmp_path, monkeypatch):
    """Tables at URLs of object stores are; here it opens the local one."""
    monkeypatch.setattr(delta_table, "is_local", lambda path: False)
    sink = sinks.Delta(tmp_path)
    first, second = (sink.open(context(generation)) for generation in range(2))
    first.write(numbers(0, 3))
    prepared = first.prepare(1)
    first.write(numbers(3, 5))
    first.prepare(2)
    first.write(numbers(5, 6))
    first._files.write_group()
    first.abort()
    assert len(files(tmp_path)) == 2
    second.recover([prepared], 1)
    assert rows(tmp_path) == [0, 1, 2]
    assert len(files(tmp_path)) == 1
    [file] = prepared.files
    assert file.nbytes == (tmp_path / file.path).stat().st_size
