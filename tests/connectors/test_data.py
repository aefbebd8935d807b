from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

NAMES = (
    "flights_nyc2013/flights.parquet",
    "retail_orders/orders.parquet",
    "wiki_edits/edits.parquet",
    "orders_bitstamp/orders.parquet",
)


@pytest.mark.parametrize("name", NAMES)
def test_stand_in_has_schema_of_recording(name, stand_in, recording, data_path):
    real = recording(name)
    path = data_path(name)
    assert real is None or real == path
    assert pq.read_schema(path).equals(stand_in(name).schema)


@pytest.mark.parametrize("name", NAMES)
def test_stand_in_is_deterministic_and_sorted_by_time(name, stand_in):
    table = stand_in(name)
    table.validate(full=True)
    assert table.equals(stand_in(name))
    clock = table["sched_dep" if "sched_dep" in table.schema.names else "ts"].cast(pa.int64())
    assert pc.all(pc.greater_equal(pc.pairwise_diff(clock.combine_chunks()), 0)).as_py()


def test_cancelled_flights_have_no_delay(stand_in):
    table = stand_in("flights_nyc2013/flights.parquet")
    assert 0 < table["dep_delay"].null_count == table["air_time"].null_count < table.num_rows / 10


def test_stand_in_is_written_when_recording_is_missing(tmp_path, monkeypatch, data_path, recording):
    monkeypatch.setenv("ELASTIC_TEST_DATA", str(tmp_path))
    assert recording(NAMES[3]) is None
    path = data_path(NAMES[3])
    assert pq.read_table(path).num_rows == 10_000
    assert data_path(NAMES[3]) == path


def test_recordings_are_found_in_directory_of_environment_variable(tmp_path, monkeypatch, data_path):
    (tmp_path / "wiki_edits").mkdir()
    (tmp_path / NAMES[2]).write_bytes(b"")
    monkeypatch.setenv("ELASTIC_TEST_DATA", str(tmp_path))
    assert data_path(NAMES[2]) == tmp_path / NAMES[2]
    monkeypatch.setenv("ELASTIC_TEST_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(FileNotFoundError, match="no directory"):
        data_path(NAMES[2])
