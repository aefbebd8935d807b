"""The ledger of an output queue, against a plain list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.scheduler.output_queues import OutputQueue


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.just("add"), st.integers(0, 30)), max_size=40))
def test_output_queue_keeps_items_until_acknowledged_and_removes_them_once(steps):
    ledger = OutputQueue(JobGeneration("job", 1), limit=4)
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
