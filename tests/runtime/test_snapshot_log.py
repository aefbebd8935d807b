from __future__ import annotations

import numpy as np

from dask_elastic.runtime.scheduler.snapshot_log import EXECUTOR_BYTES, SnapshotLog
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot


def moment(now, *jobs):
    shards = np.zeros(1_000)
    executor = ExecutorSnapshot(ExecutorId("op", 0), 0, {0: 1}, 0.0, None, shard_load=shards)
    made = tuple(JobSnapshot(name, generation, (executor,)) for name, generation in jobs)
    return Snapshot(float(now), (NodeSnapshot("a", "a", 1),), made)


def test_snapshot_log_stays_within_limit_and_keeps_newest_snapshot():
    log = SnapshotLog(limit=3 * (8_000 + EXECUTOR_BYTES))
    for now in range(10):
        log.add(moment(now, ("job", 1)))
    assert [s.now for s in log.snapshots] == [7.0, 8.0, 9.0]
    small = SnapshotLog(limit=1)
    for now in range(3):
        small.add(moment(now, ("job", 1)))
    assert [s.now for s in small.snapshots] == [2.0]


def test_snapshot_log_returns_snapshots_of_one_generation():
    log = SnapshotLog()
    for now in range(6):
        log.add(moment(now, ("job", 1 + now // 3), ("other", 9)))
    assert [s.now for s in log.of("job", 1)] == [0.0, 1.0, 2.0]
    assert [s.now for s in log.of("job", 2, last=2)] == [4.0, 5.0]
    assert [s.now for s in log.of("job", 2, last=9)] == [3.0, 4.0, 5.0]
    assert log.of("job", 2, last=0) == []
    assert log.of("job", 3) == []
