from __future__ import annotations

import threading
from pathlib import Path

import cloudpickle
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.connectors import sources
from dask_elastic.connectors.sinks import Parquet, rolling_files
from dask_elastic.topology.sink import SinkContext, SinkWriter
from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.errors import SchemaMismatch, SinkError, TopologyError


def context(instance: int = 0, job: str = "job", operator: str = "planes", run: str = "") -> SinkContext:
    return SinkContext(job, operator, node=instance // 2, instance=instance, run=run)


def numbers(start: int, stop: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(start, stop), pa.int64())})


def written(directory: Path) -> list[int]:
    rows = [rows for rows, _ in sources.Parquet(directory).read(SourceContext())]
    return [n for batch in rows for n in batch["n"].to_pylist()]


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def run(sink: Parquet, start: int, stop: int, where: SinkContext | None = None) -> SinkWriter:
    writer = sink.open(where or context())
    writer.write(numbers(start, stop))
    writer.close()
    return writer


def test_file_is_visible_only_after_close(tmp_path):
    writer = Parquet(tmp_path / "new" / "out").open(context())
    writer.write(numbers(0, 200_000))
    writer.write(numbers(200_000, 200_010))
    directory = tmp_path / "new" / "out"
    assert visible(directory) == []
    assert [path.name.startswith(".part-job-planes-") for path in directory.iterdir()] == [True]
    writer.close()
    writer.close()
    assert written(directory) == list(range(200_010))
    assert [path.name for path in directory.iterdir()] == visible(directory)
    assert pq.ParquetFile(directory / visible(directory)[0]).num_row_groups == 2


def test_aborted_writer_keeps_full_files_and_drops_the_rest(tmp_path):
    writer = Parquet(tmp_path, rows_per_file=10).open(context())
    writer.write(numbers(0, 25))
    writer._files.write_group()
    assert len(list(tmp_path.iterdir())) == 3
    writer.abort()
    writer.abort()
    assert written(tmp_path) == list(range(20))
    assert len(list(tmp_path.iterdir())) == 2


def test_aborted_writer_without_full_file_leaves_no_file(tmp_path):
    writer = Parquet(tmp_path).open(context())
    writer.write(numbers(0, 5))
    writer.abort()
    writer.close()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), max_size=6), rows_per_file=st.integers(1, 25), group_rows=st.integers(1, 25))
def test_writer_rolls_files_and_keeps_every_row(tmp_path_factory, sizes, rows_per_file, group_rows):
    directory = tmp_path_factory.mktemp("roll")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rolling_files, "GROUP_ROWS", group_rows)
        writer = Parquet(directory, rows_per_file=rows_per_file, compression="none").open(context())
        done = 0
        for size in sizes:
            writer.write(numbers(done, done + size))
            done += size
        writer.close()
    counts = [pq.read_metadata(directory / name).num_rows for name in visible(directory)]
    assert all(count == rows_per_file for count in counts[:-1])
    assert done == 0 or written(directory) == list(range(done))
    assert sum(counts) == done


def test_writer_without_rows_writes_no_file(tmp_path):
    run(Parquet(tmp_path), 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_mode_error_refuses_directory_with_files(tmp_path):
    run(Parquet(tmp_path), 0, 5)
    for where in (context(), context(3), context(job="another")):
        with pytest.raises(SinkError, match=r"already holds 1 Parquet files, such as part-job-planes.*overwrite"):
            Parquet(tmp_path).open(where)
    (tmp_path / "notes.txt").write_text("kept")
    assert written(tmp_path) == list(range(5))


def test_mode_append_keeps_existing_files(tmp_path):
    sink = Parquet(tmp_path, mode="append", rows_per_file=3)
    run(sink, 0, 5)
    run(sink, 5, 10)
    run(Parquet(tmp_path, mode="append"), 10, 12)
    assert sorted(written(tmp_path)) == list(range(12))
    assert len(visible(tmp_path)) == 5


def test_mode_overwrite_deletes_files_of_rolling_filess(tmp_path):
    run(Parquet(tmp_path, rows_per_file=2), 0, 5)
    dead = Parquet(tmp_path, mode="append").open(context(7))
    dead.write(numbers(90, 95))
    dead._files.write_group()
    sink = Parquet(tmp_path, mode="overwrite")
    run(sink, 5, 7)
    assert written(tmp_path) == [5, 6]
    assert len(list(tmp_path.iterdir())) == 1
    run(sink, 7, 9)
    assert written(tmp_path) == [7, 8]


def test_mode_overwrite_refuses_foreign_files(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(SinkError, match=r"foreign\.parquet was not written by sinks.Parquet"):
        Parquet(tmp_path, mode="overwrite").open(context())
    assert written(tmp_path) == [1]


@pytest.mark.parametrize("mode", ["error", "append"])
@pytest.mark.parametrize("last_act", ["abort", "close"])
def test_hung_writer_of_earlier_run_leaves_file_of_later_run_unchanged(tmp_path, mode, last_act):
    sink = Parquet(tmp_path, mode=mode, compression="none")
    hung = sink.open(context())
    hung.write(numbers(0, 5))
    hung._files.write_group()
    run(cloudpickle.loads(cloudpickle.dumps(sink)), 10, 20)
    [finished] = visible(tmp_path)
    before = (tmp_path / finished).read_bytes()
    hung.write(numbers(5, 9))
    getattr(hung, last_act)()
    assert (tmp_path / finished).read_bytes() == before
    assert pq.read_table(tmp_path / finished)["n"].to_pylist() == list(range(10, 20))


def test_hung_writer_of_earlier_run_keeps_its_own_hidden_file(tmp_path):
    sink = Parquet(tmp_path)
    hung = sink.open(context())
    hung.write(numbers(0, 5))
    hung._files.write_group()
    later = sink.open(context())
    later.write(numbers(5, 10))
    later._files.write_group()
    later.abort()
    hung.close()
    assert written(tmp_path) == list(range(5))


def test_writer_does_not_open_file_that_exists(tmp_path):
    same = context(run="0123456789ab")
    first = Parquet(tmp_path).open(same)
    first.write(numbers(0, 5))
    first._files.write_group()
    second = Parquet(tmp_path).open(same)
    second.write(numbers(5, 10))
    with pytest.raises(SinkError, match=r"cannot write .*exists"):
        second.close()
    second.abort()
    first.close()
    assert written(tmp_path) == list(range(5))


def test_writer_does_not_open_remote_file_that_exists():
    try:
        writer = Parquet("memory://out/planes").open(context())
        writer.write(numbers(0, 5))
        fsspec.filesystem("memory").pipe(writer._hidden_path(0), b"begun by another writer")
        with pytest.raises(SinkError, match=r"cannot write .*exists"):
            writer.close()
    finally:
        fsspec.filesystem("memory").rm("/out", recursive=True)


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_late_writer_keeps_files_of_early_writer(tmp_path, mode):
    sink = Parquet(tmp_path, mode=mode, rows_per_file=2)
    early = sink.open(context(0, run="0123456789ab"))
    early.write(numbers(0, 5))
    late = cloudpickle.loads(cloudpickle.dumps(sink)).open(context(1, run="0123456789ab"))
    late.write(numbers(5, 10))
    early.close()
    late.close()
    assert sorted(written(tmp_path)) == list(range(10))


def test_concurrent_writers_clear_directory_once(tmp_path):
    run(Parquet(tmp_path, rows_per_file=1), 0, 40)
    sink = Parquet(tmp_path, mode="overwrite", rows_per_file=5)
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def write(instance: int) -> None:
        try:
            start.wait()
            run(sink, instance * 10, instance * 10 + 10, context(instance, run="0123456789ab"))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(instance,)) for instance in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(written(tmp_path)) == list(range(60))


def test_special_characters_in_names_are_escaped(tmp_path):
    sink = Parquet(tmp_path)
    run(sink, 0, 2, context(job="a/b c", operator="out→../x"))
    assert written(tmp_path) == [0, 1]
    assert visible(tmp_path)[0].startswith("part-a%2Fb%20c-out%E2%86%92..%2Fx-")


def test_batches_with_different_dictionaries_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(rolling_files, "GROUP_ROWS", 3)
    words = ["a", "b", "c", "d", "b", None]
    writer = Parquet(tmp_path).open(context())
    for start in range(0, 6, 2):
        writer.write(pa.RecordBatch.from_pydict({"n": pa.array(words[start : start + 2]).dictionary_encode()}))
    writer.close()
    assert written(tmp_path) == words


def test_batch_of_another_schema_is_refused(tmp_path):
    writer = Parquet(tmp_path).open(context())
    writer.write(numbers(0, 1))
    with pytest.raises(SchemaMismatch, match=r"sink 'planes' of job 'job'.*column 'n': string instead of int64"):
        writer.write(pa.RecordBatch.from_pydict({"n": ["x"]}))
    writer.abort()


def test_directory_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkError, match=r"directory .*file/out: cannot be opened"):
        Parquet(tmp_path / "file" / "out").open(context())
    with pytest.raises(SinkError, match="cannot be opened"):
        Parquet("nonsense://x").open(context())


def test_write_fails_when_directory_was_deleted(tmp_path):
    directory = tmp_path / "out"
    writer = Parquet(directory).open(context())
    writer.write(numbers(0, 3))
    directory.rmdir()
    with pytest.raises(SinkError, match="cannot write"):
        writer.close()
    writer.abort()


def test_close_fails_when_file_was_deleted(tmp_path):
    writer = Parquet(tmp_path).open(context())
    writer.write(numbers(0, 3))
    writer._files.write_group()
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(SinkError, match="cannot finish"):
        writer.close()
    writer.abort()


def test_sink_writes_to_fsspec_file_systems():
    try:
        run(Parquet("memory://out/planes"), 0, 3)
        assert written("memory://out/planes") == [0, 1, 2]
        with pytest.raises(SinkError, match="holds 1 Parquet files"):
            Parquet("memory://out/planes").open(context())
        run(Parquet("memory://out/planes", mode="overwrite"), 3, 5)
        assert written("memory://out/planes") == [3, 4]
    finally:
        fsspec.filesystem("memory").rm("/out", recursive=True)


def test_recording_is_written_unchanged(tmp_path, data_path):
    table = pq.read_table(data_path("wiki_edits/edits.parquet"))
    writer = Parquet(tmp_path, rows_per_file=7_000).open(context())
    for batch in table.to_batches(max_chunksize=1000):
        writer.write(batch)
    writer.close()
    files = [pq.read_table(tmp_path / name) for name in visible(tmp_path)]
    plain = pa.schema(
        [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in table.schema]
    )
    assert pa.concat_tables(files).cast(plain).equals(table.cast(plain))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "mode is 'replace'; give one of error, overwrite, append"),
        ({"compression": "zip"}, "compression is 'zip'; give one of zstd"),
        ({"rows_per_file": 0}, "rows_per_file is 0"),
    ],
)
def test_invalid_sink_options_are_refused(options, message):
    with pytest.raises(TopologyError, match=message):
        Parquet("out", **options)
    with pytest.raises(TopologyError, match="takes the path of a directory"):
        Parquet(None)
