from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_elastic.connectors.sources import Parquet
from dask_elastic.connectors.storage import find_files, full_path
from dask_elastic.topology.source import Source, SourceContext
from dask_elastic.vocab.errors import SourceError, TopologyError


def read(source: Source, **context: object) -> list[tuple[pa.RecordBatch, object]]:
    return list(source.read(SourceContext(**context)))


def column(source: Source, **context: object) -> list[int]:
    return [value for rows, _ in read(source, **context) for value in rows["n"].to_pylist()]


def write(path: Path, start: int, stop: int, group: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = list(range(start, stop))
    table = pa.table({"n": numbers, "word": [f"w{n % 3}" for n in numbers], "at": pa.array(numbers, pa.timestamp("s"))})
    pq.write_table(table, path, row_group_size=group)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 10, 7 and 3 rows, in row groups of 4."""
    for name, start, stop in (("a", 0, 10), ("b", 10, 17), ("c", 17, 20)):
        write(tmp_path / f"{name}.parquet", start, stop)
    write(tmp_path / ".d.parquet.writing", 90, 95)
    write(tmp_path / "_draft" / "e.parquet", 90, 95)
    (tmp_path / "notes.txt").write_text("no rows here")
    return tmp_path


def test_directory_glob_and_list_of_files_read_the_same_rows(folder):
    names = [folder / f"{name}.parquet" for name in "abc"]
    for path in (
        folder,
        str(folder),
        f"{folder}/*.parquet",
        f"file://{folder}",
        names,
        [f"{folder}/[ab].p*", names[2]],
    ):
        assert column(Parquet(path)) == list(range(20)), path
    assert column(Parquet(names[::-1])) == [*range(17, 20), *range(10, 17), *range(10)]
    assert column(Parquet(names[1])) == list(range(10, 17))


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
@pytest.mark.parametrize("instances", [1, 2, 3, 5, 9])
def test_parquet_instances_share_rows_and_resume_from_any_offset(folder, batch_rows, instances):
    source = Parquet(folder, batch_rows=batch_rows, parallel=instances)
    everything = []
    for instance in range(instances):
        share = {"instance": instance, "instances": instances}
        whole = column(source, **share)
        everything += whole
        assert whole == sorted(whole)
        done = 0
        for rows, offset in read(source, **share):
            assert rows.num_rows <= batch_rows
            done += rows.num_rows
            assert column(source, offset=offset, **share) == whole[done:]
    assert sorted(everything) == list(range(20))


def test_instances_share_row_groups_when_files_are_few(folder):
    source = Parquet(folder / "a.parquet", parallel=2)
    assert column(source, instance=0, instances=2) == [0, 1, 2, 3, 8, 9]
    assert column(source, instance=1, instances=2) == [4, 5, 6, 7]


def test_instances_read_the_files_on_which_they_agree(folder):
    found = []

    def agreed(own):
        found.append(own)
        return found[0]

    source = Parquet(folder, parallel=2)
    first = source.read(SourceContext(instance=0, instances=2, agreed=agreed))
    rows, (before, *_) = next(first)
    numbers = rows["n"].to_pylist()
    write(folder / "aa.parquet", 50, 55)
    second = read(source, instance=1, instances=2, agreed=agreed)
    assert {offset[0] for _, offset in second} == {before}
    for rows, _ in [*first, *second]:
        numbers += rows["n"].to_pylist()
    assert sorted(numbers) == list(range(20))


def test_offset_of_other_files_is_refused(folder):
    source = Parquet(folder)
    _, offset = read(source)[0]
    with pytest.raises(SourceError, match="number of instances"):
        read(source, offset=offset, instances=2)
    write(folder / "0.parquet", 30, 35)
    with pytest.raises(SourceError, match="changed since the job started"):
        read(source, offset=offset)
    with pytest.raises(SourceError, match="not an offset of this source"):
        read(source, offset=7)


def test_only_used_columns_are_read(folder):
    source = Parquet(folder, event_time="at")
    assert read(source)[0][0].schema.names == ["n", "word", "at"]
    assert read(source.columns_read(("n",)))[0][0].schema.names == ["n", "at"]
    assert read(Parquet(folder, columns=["word", "n"]))[0][0].schema.names == ["word", "n"]
    counted = Parquet(folder).columns_read(())
    assert sum(rows.num_rows for rows, _ in read(counted)) == 20


def test_check_names_invalid_columns(folder):
    with pytest.raises(SourceError, match="no column 'sched_dep' for event_time; choose one of 'n', 'word', 'at'"):
        Parquet(folder, event_time="sched_dep").check()
    with pytest.raises(SourceError, match="event_time 'word' is string, not a timestamp or date; choose one of 'at'"):
        Parquet(folder, event_time="word").check()
    with pytest.raises(SourceError, match="has no column 'delay'; it has 'n', 'word', 'at'"):
        Parquet(folder, columns=["n", "delay"]).check()
    with pytest.raises(SourceError, match="has no column 'delay'"):
        Parquet(folder).columns_read(("delay",)).check()
    Parquet(folder, event_time="at").check()


def test_missing_files_are_reported_by_read_not_by_check(tmp_path):
    for path in (tmp_path / "away.parquet", tmp_path, f"{tmp_path}/*.parquet"):
        source = Parquet(path)
        source.check()
        with pytest.raises(SourceError, match="this worker finds no Parquet file there"):
            read(source)


def test_urls_are_checked_by_read_not_by_check(tmp_path):
    Parquet("s3://no-such-bucket/x.parquet").check()
    with pytest.raises(SourceError, match="cannot be opened"):
        read(Parquet("nonsense://x/y.parquet"))


def test_file_of_another_format_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"not at all parquet")
    with pytest.raises(SourceError, match=r"cannot be opened: .*x\.parquet"):
        Parquet(tmp_path).check()


def test_damaged_file_is_named(folder):
    whole = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(whole[:4] + b"\0" * 200 + whole[204:])
    with pytest.raises(SourceError, match=r"cannot read .*a\.parquet"):
        read(Parquet(folder / "a.parquet"))


def test_source_reads_from_fsspec_file_systems(folder):
    memory = fsspec.filesystem("memory")
    for name in "ab":
        memory.pipe(f"/flights/2013/{name}.parquet", (folder / f"{name}.parquet").read_bytes())
    try:
        assert column(Parquet("memory://flights")) == list(range(17))
        assert column(Parquet("memory://flights/**/b.parquet")) == list(range(10, 17))
        assert column(Parquet("memory://flights/2013/a.parquet", storage_options={})) == list(range(10))
        with pytest.raises(SourceError, match="several file systems"):
            read(Parquet(["memory://flights", folder]))
    finally:
        memory.rm("/flights", recursive=True)


def test_hive_directories_become_columns(tmp_path):
    write(tmp_path / "year=2013" / "x.parquet", 0, 3)
    write(tmp_path / "year=2014" / "x.parquet", 3, 6)
    rows = [rows for rows, _ in read(Parquet(tmp_path).columns_read(("n", "year")))]
    assert [batch["year"].to_pylist() for batch in rows] == [[2013] * 3, [2014] * 3]
    assert read(Parquet(tmp_path / "year=2013" / "x.parquet"))[0][0].schema.names == ["n", "word", "at"]


def test_rate_limits_rows_per_parquet_batch(folder):
    assert {rows.num_rows for rows, _ in read(Parquet(folder, rate=20))} <= {1, 2}


def test_parquet_stops_when_job_is_stopping(folder):
    answers = iter([False, True])
    assert column(Parquet(folder), stopping=lambda: next(answers)) == [0, 1, 2, 3]


def test_relative_paths_are_resolved_when_the_source_is_created(folder, monkeypatch):
    monkeypatch.chdir(folder)
    source = Parquet("a.parquet")
    monkeypatch.chdir("/")
    assert column(source) == list(range(10))
    assert full_path("~/x").startswith("/")


def test_single_star_does_not_match_directories(tmp_path):
    for name in ("x1.parquet", "in/x2.parquet", "in/deep/x3.parquet", "in/y[1].parquet"):
        write(tmp_path / name, 0, 1)

    def found(glob: str) -> list[str]:
        return [info.base_name for info in find_files(f"{tmp_path}/{glob}", (".parquet",)).infos]

    assert found("*.parquet") == ["x1.parquet"]
    assert sorted(found("**/x?.parquet")) == ["x1.parquet", "x2.parquet", "x3.parquet"]
    assert found("*/x*") == ["x2.parquet"]
    assert found("**/x[!13].parquet") == ["x2.parquet"]
    assert found("in/**") == ["x3.parquet", "x2.parquet", "y[1].parquet"]


def test_recording_is_read_completely(data_path):
    path = data_path("flights_nyc2013/flights.parquet")
    source = Parquet(path, event_time="sched_dep").columns_read(("tailnum", "arr_delay"))
    source.check()
    batches = [rows for rows, _ in read(source)]
    table = pa.Table.from_batches(batches)
    assert table.schema.names == ["sched_dep", "arr_delay", "tailnum"]
    assert table.equals(pq.read_table(path, columns=table.schema.names).replace_schema_metadata(None))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parquet([]), "at least one"),
        (lambda: Parquet(3), "takes a path"),
        (lambda: Parquet(["x", 3]), "takes a path"),
        (lambda: Parquet("x", batch_rows=0), "batch_rows is 0"),
    ],
)
def test_invalid_parquet_source_options_are_refused(make, message):
    with pytest.raises(TopologyError, match=message):
        make()
