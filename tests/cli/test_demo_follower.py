"""What the demonstration shows while it follows two jobs, for known descriptions and snapshots."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dask_elastic.cli.demo import follower
from dask_elastic.cli.demo.follower import Follower
from dask_elastic.cli.demo.load import Load
from dask_elastic.cli.demo.outage import Outage
from dask_elastic.cli.terminal.console import plain_text
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODE = NodeSnapshot("tcp://a:1", "a", 8)


class Contestant:
    """A job whose rows and snapshots the test sets."""

    def __init__(self, name):
        self.name = self.label = name
        self.rows, self.latencies, self.killed = 0, [], 0
        self.job = SimpleNamespace(snapshots=self.snapshots)

    def snapshots(self, last):
        executors = (ExecutorSnapshot(ExecutorId("per_plane", 0), 0, {0: 1}, arrival_rate=1.0, service_rate=None),)
        jobs = [JobSnapshot(self.name, 1, executors, 0.1, latency=one, latency_p99=one) for one in self.latencies]
        return [Snapshot(1_000.0 + second, (NODE,), (job,)) for second, job in enumerate(jobs)][-last:]

    def describe(self):
        checkpoints = SimpleNamespace(number=1, complete=SimpleNamespace(began=1_000.0))
        status = SimpleNamespace(value="running")
        return SimpleNamespace(
            live=True, generation=1, rows_read=self.rows, executors=[], checkpoints=checkpoints, status=status
        )

    def kill_home(self):
        self.killed += 1


@pytest.fixture
def lines(monkeypatch):
    """The lines that are shown."""
    shown = []
    monkeypatch.setattr(follower, "show", lambda line: shown.append(plain_text(line)))
    return shown


def test_loss_before_the_first_measured_second_is_shown_with_it(lines):
    both = static, elastic = Contestant("static"), Contestant("elastic")
    follows = Follower(static, elastic, Load(100.0, 0.1), [100, 200], [False, True], Outage(at_row=150))
    for one in both:
        one.rows = 150
    assert follows.look()
    assert [one.killed for one in both] == [1, 1]
    assert lines == []
    for one in both:
        one.latencies = [None, 0.05]
    assert follows.look()
    assert follows.look()
    [told] = [line for line in lines if "kill -9: one worker of each job" in line]
    assert told is lines[0]
    assert told.count("restarting") == 2
