from __future__ import annotations

import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

NAMES = (
    "flights_nyc2013/flights.parquet",
    "retail_orders/orders.parquet",
    "wiki_edits/edits.parquet",
    "orders_bitstamp/orders.parquet",
    "weather_nyc2013/weather.parquet",
    "commit_texts/commits.parquet",
)


@pytest.mark.parametrize("name", NAMES)
def test_stand_in_has_schema_of_recording(name, stand_in, recording, data_path):
    path = data_path(name)
    assert recording(name) in (path, None)
    assert pq.read_schema(path).remove_metadata().equals(stand_in(name).schema)


@pytest.mark.parametrize("name", NAMES)
def test_stand_in_is_deterministic_and_sorted_by_time(name, stand_in):
    table = stand_in(name)
    table.validate(full=True)
    assert table.equals(stand_in(name))
    [clock, *_] = (
        table[name].cast(pa.int64()) for name in ("sched_dep", "arrival_ts", "ts") if name in table.schema.names
    )
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


def collected(folder):
    """Return exit code, output and ids of the tests of this file that use a recording found in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-k", "schema_of_recording and wiki", __file__],
        env={**os.environ, "ELASTIC_TEST_DATA": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, re.findall(r"\[(.*)\]", done.stdout)


def test_tests_run_with_recording_and_with_stand_in_where_there_are_recordings(tmp_path):
    (tmp_path / NAMES[2]).parent.mkdir()
    (tmp_path / NAMES[2]).write_bytes(b"")
    _, output, ids = collected(tmp_path)
    assert sorted(ids) == [f"recorded-{NAMES[2]}", f"stand-in-{NAMES[2]}"], output
    (tmp_path / NAMES[2]).unlink()
    _, output, ids = collected(tmp_path)
    assert ids == [f"stand-in-{NAMES[2]}"], output


def test_missing_directory_of_recordings_is_named(tmp_path):
    code, output, _ = collected(tmp_path / "elsewhere")
    assert code != 0
    assert "elsewhere', which is no directory" in output
