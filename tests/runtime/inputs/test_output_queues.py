"""The ledger of an output queue, against a plain list."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.scheduler.output_queues import OutputQueue
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.buffers.output_buffer import OutputBuffer


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.just("add"), st.integers(0, 30)), max_size=40))
def test_output_queue_keeps_items_until_acknowledged_and_removes_them_once(steps):
    ledger = OutputQueue(JobGeneration("job", 1), "run", limit=4)
    model: list[tuple[int, str, int]] = []
    removed: list[int] = []
    count = 0
    for step in steps:
        if step == "add":
            count += 1
            assert tuple(ledger.add("worker", 100 + count)) == (count, "worker", 100 + count)
            model.append((count, "worker", 100 + count))
        else:
            removed += [item.item for item in ledger.acknowledge(step)]
            model = [item for item in model if item[0] > step]
        assert [tuple(item) for item in ledger.items] == model
    assert removed + [item[2] for item in model] == [100 + number for number in range(1, count + 1)]


def test_writer_waits_until_readers_have_taken_the_batches_of_its_queue():
    waited = threading.Event()

    def ended() -> bool:
        waited.set()
        return False

    buffer = OutputBuffer(lambda call: True, JobGeneration("job", 1), "worker", ended)
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    for queue in ("alerts", "alerts", "others"):
        buffer.put(queue, 4, rows)
    waited.clear()
    drained = threading.Thread(target=buffer.drain, args=("alerts",), daemon=True)
    drained.start()
    assert waited.wait(30)
    buffer.drop([0])
    assert drained.is_alive()
    buffer.drop([1])
    drained.join(30)
    assert not drained.is_alive()


def test_writer_that_waits_for_readers_ends_with_its_job():
    ends = iter([False, False, True])
    buffer = OutputBuffer(lambda call: True, JobGeneration("job", 1), "worker", lambda: next(ends))
    buffer.put("alerts", 4, pa.RecordBatch.from_pydict({"n": [1]}))
    with pytest.raises(Aborted):
        buffer.drain("alerts")
