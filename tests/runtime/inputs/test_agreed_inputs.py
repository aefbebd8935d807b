"""The instances of a source read what the first of them has found, in each start of the job."""

from __future__ import annotations

import asyncio

from dask_elastic.runtime.protocol.job_calls import AgreeOnInput
from dask_elastic.runtime.scheduler.coordinator import Coordinator


def test_first_instance_of_each_generation_decides_what_all_read(fake):
    async def run():
        coordinator = Coordinator(fake.Scheduler({"a": 2}))
        await coordinator.submit(fake.submission("job"))
        said = [(2, "rows", b"a"), (2, "rows", b"a b"), (2, "other", b"c"), (3, "rows", b"d"), (2, "rows", b"late")]
        answers = [await coordinator.pushed.agree(AgreeOnInput("job", *each)) for each in said]
        assert answers == [b"a", b"a", b"c", b"d", b"late"]
        assert await coordinator.pushed.agree(AgreeOnInput("job", 3, "rows", b"e")) == b"d"

    asyncio.run(run())
