"""A job that starts on many workers costs the event loop of the scheduler little for each of them."""

from __future__ import annotations

import asyncio

from distributed.protocol import dumps, to_serialize

from dask_elastic.runtime.protocol.calls import message_of
from dask_elastic.runtime.protocol.part_calls import Prepare
from dask_elastic.runtime.scheduler.coordinator import Coordinator

NODES = 1_000


def test_job_is_encoded_once_for_all_workers(fake):
    scheduler = fake.Scheduler({f"h{node // 4}:{node}": 2 for node in range(NODES)})

    async def run():
        coordinator = Coordinator(scheduler)
        await coordinator.submit(fake.submission())
        coordinator.heartbeats.stop()

    asyncio.run(run())
    prepared = scheduler.asked(Prepare)
    assert [call.node for _, call in prepared] == list(range(NODES))
    assert len({id(call.job.obj) for _, call in prepared}) == 1
    (_, first), (address, last) = prepared[0], prepared[-1]
    assert last.spec.nodes[last.spec.node] == address
    assert len(last.spec.homes["op0"]) == NODES
    message = message_of(first) | {"job": to_serialize(b""), "components": to_serialize(b"")}
    # What is encoded for each worker does not list the others.
    assert sum(len(frame) for frame in dumps(message)) < 1_000
