"""A worker under memory pressure withholds credit first, and fails a job when state fills its memory."""

from __future__ import annotations

import pytest

from dask_elastic.runtime.config.worker_options import WorkerOptions
from dask_elastic.runtime.worker.memory import PATIENCE, Memory
from dask_elastic.vocab.errors import StateMemoryExceeded

MIB = 2**20
LARGE = 100 * MIB
OPTIONS = WorkerOptions(memory_pressure=0.5, memory_limit=0.8)


class Process:
    """A process whose memory and clock the test sets."""

    def __init__(self):
        self.resident = 0
        self.now = 0.0

    def watch(self, limit=100 * MIB):
        """Return its memory monitor; each reading of the clock advances it by a second."""
        return Memory(limit, OPTIONS, lambda: self.resident, self.clock)

    def clock(self):
        """Return the time."""
        self.now += 1.0
        return self.now


@pytest.fixture
def process():
    return Process()


def test_credit_is_withheld_above_memory_pressure_and_granted_below(process):
    memory = process.watch()
    for resident, tight in ((40, False), (60, True), (55, True), (45, False)):
        process.resident = resident * MIB
        assert not memory.look()
        assert memory.tight == tight


def test_state_between_pressure_and_limit_does_not_fail_job(process):
    memory = process.watch(100 * LARGE)
    process.resident = 60 * LARGE
    assert not memory.look()
    assert memory.tight
    for _ in range(20):
        assert not memory.look()
    assert not memory.tight


def test_rows_are_withheld_again_halfway_from_state_to_limit(process):
    memory = process.watch(100 * LARGE)
    for resident, tight in ((60, True), (69, False), (71, True), (75, False), (77, True), (78, False)):
        process.resident = resident * LARGE
        assert not memory.look()
        assert memory.tight == tight
        for _ in range(2 * int(PATIENCE)):
            assert not memory.look()
        assert not memory.tight
    process.resident = 81 * LARGE
    assert memory.look()


def test_withholding_starts_anew_when_memory_was_freed(process):
    memory = process.watch(100 * LARGE)
    process.resident = 60 * LARGE
    for _ in range(2 * int(PATIENCE)):
        memory.look()
    assert not memory.tight
    for resident, tight in ((65, False), (45, False), (55, True)):
        process.resident = resident * LARGE
        memory.look()
        assert memory.tight == tight


def test_state_that_leaves_no_room_for_rows_fails_job(process):
    memory = process.watch()
    process.resident = 60 * MIB
    looks = [memory.look() for _ in range(int(PATIENCE) + 2)]
    assert looks[:2] == [False, False]
    assert looks[-1]


def test_memory_without_state_takes_rows_again_instead_of_failing_job(process):
    memory = process.watch()
    process.resident = 60 * MIB
    looks = [memory.look(has_state=False) for _ in range(int(PATIENCE) + 2)]
    assert not any(looks)
    assert not memory.tight


def test_files_are_unmapped_before_rows_are_withheld(process):
    memory = process.watch()
    process.resident = 60 * MIB

    def unmap():
        process.resident -= 20 * MIB

    memory.unmap = unmap
    assert not memory.look()
    assert not memory.tight


def test_memory_limit_exceeded_fails_job_at_once(process):
    memory = process.watch()
    process.resident = 81 * MIB
    assert memory.look()


def test_state_reservation_above_limit_raises(process):
    memory = process.watch()
    process.resident = 50 * MIB
    memory.reserve(20 * MIB)
    with pytest.raises(StateMemoryExceeded, match=r"grow by 40 MiB.*has 50 MiB of 100 MiB"):
        memory.reserve(40 * MIB)


def test_worker_without_memory_limit_is_not_monitored(process):
    memory = process.watch(limit=0)
    process.resident = 2**50
    assert not memory.look()
    memory.reserve(2**40)
