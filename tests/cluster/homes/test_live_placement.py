"""Every planner of homes decides for a running job on real workers; the state is that of one process."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal

import pytest
from slow_jobs import Load, expected, planning_pair, slow_topology, state_of

import dask_elastic as de
from dask_elastic.control.placement.choices import ALIASES, PLACEMENTS, SPREAD
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.protocol.cluster_calls import Keep

PLANNERS = [name for name in PLACEMENTS if name != SPREAD and name not in ALIASES.values()]
KILLS = int(os.environ.get("HOME_KILLS", "1"))
"""How many jobs lose a worker while homes move; `make faults` has one with each planner."""
KEYS = 128
EXECUTORS = 8
"""Enough that hash functions of executors, the baselines of the papers, choose both workers."""
SETTINGS = {"elastic.placement-max-moves": EXECUTORS}


def moves(job):
    """Return the moves of homes that the planner asked for and that were carried out."""
    decisions = job.decisions()
    carried_out = decisions["homes"][decisions["applied"]] if len(decisions) else []
    return [home for listed in carried_out for home in listed if home["forecast"] is not None]


def keep(client, address):
    """Have a worker stay that was asked to leave."""
    call_scheduler(client, Keep((address,)))


@pytest.fixture(scope="module")
def pair():
    """A client of two worker processes."""
    with planning_pair(**SETTINGS) as client:
        yield client


@contextlib.contextmanager
def crowded(client, placement, wait_until, **options):
    """Run a job with state whose executors are all at home on one worker; yields it, its load, and the free worker."""
    wait_until(lambda: len(client.nthreads()) == 2, "both workers run")
    left, stays = sorted(client.nthreads())
    de.retire(left, client, timeout="100s")
    job = de.submit(
        slow_topology(f"live-{placement}", EXECUTORS), client, placement=placement, latency_target=None, **options
    )

    def state_bytes():
        [found] = job.snapshots(1)[-1:] or [None]
        return [] if found is None else [one.state_bytes for run in found.jobs for one in run.executors]

    with Load(job, range(KEYS)) as load:
        wait_until(lambda: state_bytes() and all(state_bytes()), "all executors have state")
        assert set(job.assignment()["home"]) == {stays}
        keep(client, left)
        yield job, load, left


@pytest.mark.parametrize("placement", PLANNERS)
def test_planner_moves_homes_of_running_job_and_state_is_exact(pair, wait_until, placement):
    if placement in ("albic", "cola", "milp"):
        pytest.importorskip("highspy")
        pytest.importorskip("pymetis")
    with crowded(pair, placement, wait_until) as (job, load, free):
        wait_until(lambda: moves(job), "a home has moved")
        [first, *_] = moves(job)
        assert first["target"] == free
        assert first["moved_bytes"] > 0
        assert first["forecast"]["placement"] == placement
        assert first["forecast"]["moved_bytes"] > 0
        assert [cost["strategy"] for cost in first["forecast"]["costs"]] == ["none", "labelled", "home"]
        sent = len(load.sent)
        wait_until(lambda: len(load.sent) > sent, "rows arrive at the new home")
    job.end_of_input()
    job.wait(timeout=100, progress=False)
    assert state_of(job) == expected(load.sent)
    assert f"Placement '{placement}': " in " ".join(job.decisions()["reason"])
    job.forget()


@pytest.mark.parametrize("placement", [*itertools.islice(itertools.cycle(["flux", *PLANNERS]), min(KILLS, 14))])
def test_worker_that_is_killed_while_planner_moves_homes_loses_no_row(wait_until, tmp_path, placement):
    with planning_pair(**SETTINGS) as client:
        options = {"checkpoint": tmp_path / "checkpoints", "checkpoint_interval": "300ms", "restart_attempts": 100}
        with crowded(client, placement, wait_until, **options) as (job, load, free):
            process = client.run(os.getpid)[free]
            wait_until(lambda: moves(job), "a home has moved")
            os.kill(process, signal.SIGKILL)
            wait_until(lambda: free not in client.nthreads(), "the scheduler sees the loss")
            sent = len(load.sent)
            wait_until(lambda: len(load.sent) > sent + 10, "rows are accepted again")
        job.end_of_input()
        job.wait(timeout=200, progress=False)
        assert state_of(job) == expected(load.sent)
