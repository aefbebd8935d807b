"""Snapshots of small clusters for the placement of homes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot, SourceHome, Traffic

SERVICE = 100.0


def node(number, cores=4, retiring=False, memory=2**30):
    return NodeSnapshot(f"tcp://10.0.0.{number}:1", f"10.0.0.{number}", cores, retiring, memory)


def executor(name, index, home, load, state=1_000, traffic=(), pinned=False):
    """Return an executor that keeps `load` cores busy, with a core at its home."""
    return ExecutorSnapshot(
        ExecutorId(name, index), home, {home: 1}, load * SERVICE, SERVICE, throughput=load * SERVICE,
        state_bytes=state, bytes_in=1_000.0 * load, traffic=tuple(traffic), pinned=pinned,
    )  # fmt: skip


def job(executors, placement="flux", name="job", sources=(), **options):
    return JobSnapshot(name, 1, tuple(executors), placement=placement, sources=tuple(sources), **options)


def snapshot(nodes, *jobs, now=0.0):
    return Snapshot(now, tuple(nodes), tuple(jobs))


@st.composite
def clusters(draw):
    """Snapshots with one to three nodes that stay, retiring ones, several jobs, sources, traffic and pins."""
    count = draw(st.integers(1, 5))
    retiring = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    retiring[draw(st.integers(0, count - 1))] = False
    memory = draw(st.sampled_from([0, 2**30]))
    nodes = [node(n, draw(st.integers(1, 8)), leaves, memory) for n, leaves in enumerate(retiring)]
    places = st.integers(0, count - 1)
    jobs = []
    for number in range(draw(st.integers(1, 2))):
        origins = [("rows", 0), *((name, index) for name in "ab" for index in range(2))]
        traffic = st.lists(
            st.builds(lambda origin, rate: Traffic(*origin, rate), st.sampled_from(origins), st.floats(1, 1e6)),
            max_size=3, unique_by=lambda one: one[:2],
        )  # fmt: skip
        executors = [
            executor(
                name, index, draw(places), draw(st.floats(0, 3)), draw(st.integers(0, 10**9)), draw(traffic),
                draw(st.integers(0, 5)) == 0,
            )
            for name in "ab"
            for index in range(draw(st.integers(1, 3)))
        ]  # fmt: skip
        sources = [SourceHome("rows", 0, draw(places))]
        jobs.append(job(executors, draw(st.sampled_from(["flux", "milp"])), f"job{number}", sources))
    return snapshot(nodes, *jobs)


@pytest.fixture(scope="session")
def made():
    """The pieces of a snapshot."""
    return SimpleNamespace(node=node, executor=executor, job=job, snapshot=snapshot)
