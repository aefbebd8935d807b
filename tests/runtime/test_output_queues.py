"""The line of a queue on its way out, against a plain list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.scheduler.output_queues import OutputQueue


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.just("add"), st.integers(0, 30)), max_size=40))
def test_everything_is_there_until_it_is_acknowledged_and_then_goes_once(steps):
    line = OutputQueue("job", 1, limit=4)
    model: list[tuple[int, str, int]] = []
    gone: list[int] = []
    count = 0
    for step in steps:
        if step == "add":
            count += 1
            assert tuple(line.add("worker", 100 + count)) == (count, "worker", 100 + count)
            model.append((count, "worker", 100 + count))
        else:
            gone += [item.item for item in line.acknowledge(step)]
            model = [item for item in model if item[0] > step]
        assert [tuple(item) for item in line.items] == model
    assert gone + [item[2] for item in model] == [100 + number for number in range(1, count + 1)]
