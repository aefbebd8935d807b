from __future__ import annotations

import io

import pandas as pd
import pytest

from dask_elastic.cli.demo.live_line import LiveLine
from dask_elastic.cli.demo.replay import progress_text


@pytest.fixture
def metrics():
    return pd.DataFrame(
        {
            "operator": ["per_plane", "per_route", "per_route"],
            "rows": [60, 30, 20],
            "throughput": [400.0, 100.0, 250.0],
            "latency_p50": [0.010, 0.020, None],
            "latency_p99": [0.050, 0.040, None],
            "cores": [2, 1, 3],
            "moves": [5, 0, 7],
        }
    )


def test_progress_text_shows_throughput_latency_cores_and_moves(metrics):
    assert progress_text(metrics, 100) == " 50%    350/s  p50 20 p99 50 ms  cores per_plane 2 per_route 1+3  12 moves"


def test_progress_text_without_measurements_is_starting(metrics):
    assert progress_text(metrics.iloc[:0], 100) == "starting"
    assert progress_text(metrics.assign(latency_p99=None), 100) == "starting"


def test_live_line_outside_terminal_is_printed_at_intervals():
    often, rarely = io.StringIO(), io.StringIO()
    for every, stream in ((0.0, often), (1e9, rarely)):
        line = LiveLine(every, stream)
        line.show("a")
        line.show("b")
        line.print_line("event")
    assert often.getvalue() == "a\nb\nevent\n"
    assert rarely.getvalue() == "a\nevent\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_live_line_in_terminal_is_overwritten_below_printed_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "8")
    stream = Terminal()
    line = LiveLine(stream=stream)
    line.show("0123456789")
    line.print_line("event")
    line.show("x")
    line.close()
    line.close()
    assert stream.getvalue() == "\r0123456" + "\r       \r" + "event\n" + "\rx      " + "\n"
