"""By the event time with which computes continue in one task, the same rows are late as by their own."""

from __future__ import annotations

import numpy as np

from dask_elastic.checkpoint.restore import component_event_time
from dask_elastic.executor.control_records.state_records import StateRecords
from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.topology.windowing import EventWindow, Windowing

CASES = 200


def random_windowing(random):
    """Return windows of any length, or None for a compute without event time."""
    if random.random() < 0.2:
        return None
    start, frequency = int(random.integers(0, 20)), 20 * int(random.integers(1, 6))
    parts, lateness = int(random.integers(1, 4)), 20 * int(random.integers(0, 2))
    return Windowing((EventWindow(start, frequency * parts, frequency),), ("at",), allowed_lateness=lateness)


def noted(windowing, watermarks):
    """Return the event time that an executor notes, and None for one without event time."""
    if windowing is None:
        return None
    records = StateRecords(KeySpace(1, 1), {"event"}, EventCells(windowing).grid)
    times = [record.event for time in watermarks if (record := records.reached(time)) is not None]
    return times[-1] if times else None


def test_same_rows_are_late_by_the_joint_event_time():
    rows, differed = np.arange(-50, 320), 0
    for seed in range(CASES):
        random = np.random.default_rng(seed)
        windowings = [random_windowing(random) for _ in range(3)]
        watermarks = np.sort(random.integers(0, 300, int(random.integers(1, 8)))).tolist()
        own = [noted(windowing, watermarks) for windowing in windowings]
        joint = component_event_time(own)
        differed += len({time for time in own if time is not None}) > 1
        for windowing, time in zip(windowings, own, strict=True):
            if windowing is not None:
                cells = EventCells(windowing)
                assert cells.of_points(rows, joint).counts == cells.of_points(rows, time).counts, seed
    assert differed > CASES // 10
