"""Decisions as data frames: all of them, or as many of the newest as are asked for."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from dask_elastic.runtime.client.job_reader import JobReader
from dask_elastic.runtime.protocol.job_calls import Decisions


class Reader(JobReader):
    """Reads a job with three decisions, and a move of a shard between workers behind the second one."""

    name = "job"

    def __init__(self):
        self.asked = []

    def _describe(self):
        raise AssertionError("decisions need no description")

    def _ask(self, call):
        self.asked.append(call)
        made = [{"number": number, "time": 10.0 * number, "reason": f"reason {number}"} for number in (1, 2, 3)]
        return json.dumps(made if call.last is None else made[3 - min(3, call.last) :]).encode()

    def moves(self):
        move = {"operator": "op", "executor": 0, "shard": 7, "ended": 25.0, "strategy": "labelled", "reason": ""}
        return pd.DataFrame([{**move, "across_nodes": across} for across in (True, False)])


@pytest.mark.parametrize(("last", "numbers"), [(None, [1, 2, 3]), (2, [2, 3]), (9, [1, 2, 3]), (0, [])])
def test_only_as_many_decisions_as_asked_for_are_sent(last, numbers):
    reader = Reader()
    assert reader.decisions(last=last)["number"].tolist() == numbers
    assert reader.asked == [Decisions("job", last)]


@pytest.mark.parametrize(("last", "times"), [(None, [10, 20, 25, 30]), (3, [20, 25, 30]), (1, [30]), (0, [])])
def test_moves_count_among_the_newest(last, times):
    found = Reader().decisions(moves=True, last=last)
    assert found["time"].tolist() == times
    assert found.index.tolist() == [*range(len(times))]
