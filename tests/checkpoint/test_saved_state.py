from __future__ import annotations

import pyarrow as pa
import pytest
from checkpointed import INPUT, Job

import dask_elastic as de
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.saved_state import SavedState

DELAYS = {f"N{i}": i for i in range(200)}


@pytest.fixture
def folder(tmp_path):
    job = Job(CheckpointFolder(tmp_path))
    job.put(DELAYS)
    job.checkpoint()
    job.put({"N0": 7, "N1": None})
    job.checkpoint()
    return tmp_path


@pytest.mark.parametrize("parts", [None, 1, 2, 3, 5, 8])
def test_parts_have_each_key_once(folder, parts):
    tables = list(de.scan_state(folder, "planes", parts=parts))
    assert len(tables) == parts or 2
    assert pa.concat_tables(tables).sort_by("plane").equals(de.read_state(folder, "planes").sort_by("plane"))
    worst = dict(zip(*pa.concat_tables(tables).select(["plane", "worst"]).to_pydict().values(), strict=True))
    assert worst == {plane: delay for plane, delay in (DELAYS | {"N0": 7}).items() if plane != "N1"}


def test_only_named_columns_are_returned_in_their_order(folder):
    assert de.read_state(folder, "planes", columns=["worst", "plane"]).column_names == ["worst", "plane"]
    assert next(de.scan_state(folder, "planes", columns=["flights"])).column_names == ["flights"]
    with pytest.raises(KeyError, match="no column 'delay'; the columns are plane, flights, worst"):
        de.read_state(folder, "planes", columns=["delay"])


def test_schema_is_that_of_the_rows_also_where_a_part_has_none(tmp_path):
    job = Job(CheckpointFolder(tmp_path))
    job.put({"N0": 1})
    job.checkpoint()
    saved = SavedState.open(tmp_path, "planes")
    tables = list(de.scan_state(tmp_path, "planes", parts=8))
    assert [table.num_rows for table in tables].count(0) == 7
    assert {table.schema for table in tables} == {saved.schema()}
    assert saved.schema() == pa.schema([INPUT.field("plane"), ("flights", pa.int64()), ("worst", pa.int64())])


def test_number_of_parts_is_at_most_that_of_shards(folder):
    with pytest.raises(ValueError, match="parts=9: choose from 1 to 8, the number of shards"):
        list(de.scan_state(folder, "planes", parts=9))


def test_large_state_is_read_in_more_parts_than_executors(folder, monkeypatch):
    monkeypatch.setattr("dask_elastic.checkpoint.saved_state.PART_BYTES", 2_000)
    assert 2 < SavedState.open(folder, "planes").parts <= 8
