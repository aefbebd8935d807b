from __future__ import annotations

import itertools
import pickle
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_elastic.connectors import sinks
from dask_elastic.connectors.sinks.parquet import ParquetTransaction
from dask_elastic.testing import check_sink
from dask_elastic.topology import SinkContext
from dask_elastic.vocab.errors import SinkError, TopologyError


def test_parquet_sink_shows_each_row_once(tmp_path):
    numbers = itertools.count()

    def read(sink):
        names = sorted(sink_path(sink).glob("*.parquet"))
        return [batch for name in names if not name.name.startswith(".") for batch in pq.read_table(name).to_batches()]

    def sink_path(sink):
        return tmp_path / sink.directory.rpartition("/")[2]

    check_sink(lambda: sinks.Parquet(tmp_path / str(next(numbers)), rows_per_file=10), read)


def numbers(start, stop):
    return pa.RecordBatch.from_pydict({"n": pa.array(range(start, stop), pa.int64())})


def generation(number, node=0):
    return SinkContext(
        "job", "out", node, node, run="0123456789ab", checkpoints=True, generation=number, restored=number > 0
    )


def hidden(directory):
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def shown(directory):
    names = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    return sorted(n for name in names for n in pq.read_table(name)["n"].to_pylist())


def test_recovery_deletes_files_of_incomplete_checkpoints_of_all_instances(tmp_path):
    sink = sinks.Parquet(tmp_path, rows_per_file=2)
    writers = [sink.open(generation(0, node)) for node in range(2)]
    prepared = []
    for writer in writers:
        writer.write(numbers(0, 3))
        prepared.append(writer.prepare(1))
        writer.write(numbers(10, 13))
        writer.prepare(2)
        writer.write(numbers(20, 25))
    assert len(hidden(tmp_path)) == 2 * (2 + 2 + 2)
    after = sink.open(generation(1, 1))
    after.recover([], 1)
    after.write(numbers(30, 33))
    sink.open(generation(1)).recover(prepared[:1], 1)
    # Files of the checkpoint stay until their own writer commits, and so do those of the new generation.
    assert shown(tmp_path) == [0, 1, 2]
    assert len(hidden(tmp_path)) == 2 + 1
    assert [name for name in hidden(tmp_path) if "-g1-c1-" in name] == hidden(tmp_path)[2:]
    after.commit(prepared[1])
    after.close()
    assert shown(tmp_path) == [0, 0, 1, 1, 2, 2, 30, 31, 32]
    assert hidden(tmp_path) == []


def test_recovery_deletes_files_that_the_job_left_under_another_name(tmp_path):
    sink = sinks.Parquet(tmp_path, rows_per_file=2)
    before = replace(generation(0), job="job-before/1")
    writer, other_sink, other_run = (
        sink.open(one) for one in (before, replace(before, operator="other"), replace(before, run="ba9876543210"))
    )
    writer.write(numbers(0, 3))
    prepared = [writer.prepare(1)]
    for one in (writer, other_sink, other_run):
        one.write(numbers(10, 12))
        one.prepare(2)
    kept = [name for name in hidden(tmp_path) if "-other-" in name or "ba9876543210" in name]
    assert len(kept) == 2
    sink.open(generation(1)).recover(prepared, 1)
    assert (shown(tmp_path), hidden(tmp_path)) == ([0, 1, 2], kept)


def test_aborted_writer_keeps_prepared_files_only(tmp_path):
    writer = sinks.Parquet(tmp_path, rows_per_file=2).open(generation(0))
    writer.write(numbers(0, 2))
    prepared = writer.prepare(1)
    writer.write(numbers(2, 5))
    writer.abort()
    assert len(hidden(tmp_path)) == 1
    writer.commit(prepared)
    assert shown(tmp_path) == [0, 1]


def test_transaction_without_rows_has_no_handle(tmp_path):
    writer = sinks.Parquet(tmp_path).open(generation(0))
    assert writer.prepare(1) is None


def test_restarted_writer_ignores_what_the_directory_holds(tmp_path):
    sinks.Parquet(tmp_path).open(SinkContext("other", "out", run="ba9876543210")).close()
    pq.write_table(pa.table({"n": [7]}), tmp_path / "foreign.parquet")
    for mode in ("error", "overwrite"):
        with pytest.raises(SinkError):
            sinks.Parquet(tmp_path, mode=mode).open(generation(0))
        sinks.Parquet(tmp_path, mode=mode).open(generation(1)).recover([], 0)
    assert shown(tmp_path) == [7]


def test_committed_file_that_a_reader_has_taken_does_not_prevent_a_restart(tmp_path, caplog):
    sink = sinks.Parquet(tmp_path)
    writer = sink.open(generation(0))
    writer.write(numbers(0, 2))
    prepared = writer.prepare(1)
    writer.commit(prepared)
    next(tmp_path.glob("*.parquet")).unlink()
    sink.open(generation(1)).recover([prepared], 1)
    assert "sink 'out' of job 'job'" in caplog.text
    assert "unless another program has taken it" in caplog.text.lower()


def test_rows_before_the_checkpoint_are_shown_in_the_directory_of_before_or_where_it_was_moved(tmp_path, caplog):
    before, other, moved = (tmp_path / name for name in ("before", "other", "moved"))
    writer = sinks.Parquet(before).open(generation(0))
    prepared = []
    for checkpoint in (1, 2):
        writer.write(numbers(checkpoint, checkpoint + 1))
        prepared.append(pickle.loads(pickle.dumps(writer.prepare(checkpoint))))
    sinks.Parquet(other).open(generation(1)).recover(prepared[:1], 1)
    assert (shown(before), shown(other)) == ([1], [])
    before.rename(moved)
    sinks.Parquet(moved).open(generation(2)).recover(prepared, 2)
    assert shown(moved) == [1, 2]
    assert not before.exists()
    sinks.Parquet(other).open(generation(3)).recover(prepared, 2)
    assert "prepared file" in caplog.text


def test_directory_of_before_that_cannot_be_reached_is_named_with_a_way_out(tmp_path):
    prepared = ParquetTransaction("gone://bucket/before", ("part-1.parquet",))
    with pytest.raises(SinkError, match=r"before gone://bucket/before: .*resume .* drop=\['out'\] .* is lost"):
        sinks.Parquet(tmp_path).open(generation(1)).recover([prepared], 1)


class Shared:
    """A file system in which another writer renames files first."""

    def __init__(self, filesystem, rename):
        self._filesystem = filesystem
        self._rename = rename

    def __getattr__(self, name):
        return getattr(self._filesystem, name)

    def move(self, source, target):
        self._rename(source, target)
        self._filesystem.move(source, target)


def test_files_that_a_slow_writer_of_the_generation_before_shows_at_the_same_time_are_shown(tmp_path):
    """A call of user code goes on when its job restarts."""
    sink = sinks.Parquet(tmp_path, rows_per_file=2)
    before = sink.open(generation(0))
    before.write(numbers(0, 5))
    prepared = before.prepare(1)
    after = sink.open(generation(1))
    filesystem = after._directory.filesystem
    after._directory.filesystem = Shared(filesystem, filesystem.move)
    after.recover([prepared], 1)
    assert (shown(tmp_path), hidden(tmp_path)) == ([*range(5)], [])


def test_file_that_cannot_be_shown_is_an_error(tmp_path):
    sink = sinks.Parquet(tmp_path)
    writer = sink.open(generation(0))
    writer.write(numbers(0, 2))
    prepared = writer.prepare(1)

    def refuse(source, target):
        raise PermissionError("not allowed")

    after = sink.open(generation(1))
    after._directory.filesystem = Shared(after._directory.filesystem, refuse)
    with pytest.raises(SinkError, match=r"cannot finish .*not allowed"):
        after.recover([prepared], 1)
    assert len(hidden(tmp_path)) == 1


def test_handle_of_an_earlier_version_is_committed(tmp_path):
    writer = sinks.Parquet(tmp_path).open(generation(0))
    writer.write(numbers(0, 2))
    names = tuple(writer.prepare(1).names)
    sinks.Parquet(tmp_path).open(generation(1)).recover([names], 1)
    assert shown(tmp_path) == [0, 1]


def test_overwrite_deletes_files_of_jobs_with_checkpoints(tmp_path):
    writer = sinks.Parquet(tmp_path).open(generation(0))
    writer.write(numbers(0, 2))
    writer.commit(writer.prepare(1))
    writer.write(numbers(2, 4))
    writer.prepare(2)
    sinks.Parquet(tmp_path, mode="overwrite").open(SinkContext("job", "out", run="ba9876543210"))
    assert list(tmp_path.iterdir()) == []


def test_handle_of_another_sink_is_refused(tmp_path):
    with pytest.raises(SinkError, match=r"7 is not a transaction of sinks\.Parquet"):
        sinks.Parquet(tmp_path).open(generation(0)).commit(7)


class Fetched(sinks.Collect):
    """A sink whose last writer tells what it collected, as `job.collect` does."""

    def open(self, context):
        self.writer = super().open(context)
        return self.writer


def test_collect_takes_part_in_checkpoints_only_if_rows_may_be_lost():
    assert sinks.Collect().promise is None
    check_sink(lambda: Fetched(promise="at-most-once"), lambda sink: sink.writer.collected())
    with pytest.raises(TopologyError, match='it can only promise "at-most-once"'):
        sinks.Collect(promise="exactly-once")


def test_call_passes_each_row_at_least_once():
    seen = []

    def make():
        seen.clear()
        return sinks.Call(seen.append)

    check_sink(make, lambda sink: seen)


def test_numbers_passed_to_a_function_tell_which_rows_are_repeated():
    """A store that deletes what a restart makes obsolete has each row once."""
    kept = []

    def store(batch, *, checkpoint, generation):
        kept[:] = [each for each in kept if each[1] == generation or each[0] < checkpoint]
        kept.append((checkpoint, generation, batch))

    def make():
        kept.clear()
        return sinks.Call(store)

    def rows(sink):
        counts = Counter(number for *_, batch in kept for number in batch["number"].to_pylist())
        assert set(counts.values()) == {1}
        return [batch for *_, batch in kept]

    check_sink(make, rows)


def test_call_flushes_at_each_checkpoint():
    events = []
    writer = sinks.Call(lambda batch: events.append("row"), flush=lambda: events.append("flush")).open(generation(0))
    writer.write(numbers(0, 1))
    assert writer.prepare(1) is None
    writer.close()
    assert events == ["row", "flush"]
    with pytest.raises(TopologyError, match="flush is 'now'"):
        sinks.Call(print, flush="now")


def test_first_parameter_of_a_function_is_the_batch_whatever_its_name():
    seen = []
    sinks.Call(lambda checkpoint: seen.append(checkpoint)).open(generation(0)).write(numbers(0, 1))
    sinks.Call(lambda *rows, **more: seen.append(more)).open(generation(0)).write(numbers(0, 1))
    assert seen == [numbers(0, 1), {}]


class Readers:
    """An outbox whose readers take everything when the writer waits for them."""

    def __init__(self):
        self.waiting = []
        self.taken = []

    def open(self, queue, limit, by_get):
        pass

    def put(self, queue, limit, rows):
        self.waiting.append(rows)

    def drain(self, queue):
        self.taken += self.waiting
        self.waiting = []


class Queue(sinks.DaskQueue):
    """A queue without a cluster; batches that are unread when a job is restarted are lost."""

    def __init__(self):
        super().__init__("alerts")
        self.outboxes = []

    def open(self, context):
        self.outboxes.append(Readers())
        return super().open(replace(context, outbox=self.outboxes[-1]))


def test_queue_waits_for_its_readers_before_a_checkpoint():
    check_sink(Queue, lambda sink: [rows for outbox in sink.outboxes for rows in outbox.taken])


def test_batches_on_a_queue_have_numbers():
    sink = Queue()
    writer = sink.open(generation(0, node=3))
    for checkpoint in (1, 2):
        writer.write(numbers(0, 1))
        writer.prepare(checkpoint)
    restarted = sink.open(generation(1))
    restarted.recover([], 1)
    restarted.write(numbers(0, 1))
    restarted.prepare(3)
    found = [rows.schema.metadata for outbox in sink.outboxes for rows in outbox.taken]
    assert found == [
        {b"instance": b"3", b"batch": b"0", b"generation": b"0", b"checkpoint": b"0"},
        {b"instance": b"3", b"batch": b"1", b"generation": b"0", b"checkpoint": b"1"},
        {b"instance": b"0", b"batch": b"0", b"generation": b"1", b"checkpoint": b"1"},
    ]


def test_batches_on_a_queue_have_no_numbers_without_checkpoints():
    sink = Queue()
    sink.open(SinkContext("job", "out")).write(numbers(0, 1))
    assert sink.outboxes[0].waiting[0].schema.metadata is None
