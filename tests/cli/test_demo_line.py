from __future__ import annotations

import io

import pandas as pd
import pytest

from dask_elastic.cli.demo.live_line import LiveLine
from dask_elastic.cli.demo.replay import standing


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


def test_the_line_has_throughput_latency_cores_of_each_executor_and_moves(metrics):
    assert standing(metrics, 100) == " 50%    350/s  p50 20 p99 50 ms  cores per_plane 2 per_route 1+3  12 moves"


def test_before_anything_is_measured_it_is_starting(metrics):
    assert standing(metrics.iloc[:0], 100) == "starting"
    assert standing(metrics.assign(latency_p99=None), 100) == "starting"


def test_without_a_terminal_a_line_comes_now_and_then():
    often, rarely = io.StringIO(), io.StringIO()
    for every, stream in ((0.0, often), (1e9, rarely)):
        line = LiveLine(every, stream)
        line.show("a")
        line.show("b")
        line.say("said")
    assert often.getvalue() == "a\nb\nsaid\n"
    assert rarely.getvalue() == "a\nsaid\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_terminal_the_line_is_rewritten_and_what_is_said_stays(monkeypatch):
    monkeypatch.setenv("COLUMNS", "8")
    stream = Terminal()
    line = LiveLine(stream=stream)
    line.show("0123456789")
    line.say("said")
    line.show("x")
    line.close()
    line.close()
    assert stream.getvalue() == "\r0123456" + "\r       \r" + "said\n" + "\rx      " + "\n"
