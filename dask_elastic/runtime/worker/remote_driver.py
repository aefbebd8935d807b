"""Remote tasks on threads: the part of an executor that runs away from its home."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING

from dask_elastic.executor.remote import RemotePart
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.transport.fence import Fence
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.errors import NodeLost

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.job_part import JobPart
    from dask_elastic.topology.component import Component

logger = logging.getLogger("dask_elastic.node")


class RemoteDriver:
    """Drives the remote tasks of one executor on this node.

    Parameters
    ----------
    job_part : JobPart
        The job's part on this node.
    part : RemotePart
        Their queues and state.
    component : Component
        What they run.
    home : int
        The node of the executor's home.
    """

    def __init__(self, job_part: JobPart, part: RemotePart, component: Component, home: int):
        self.job_part = job_part
        self.part = part
        self.component = component
        self.home = home
        self._bells: dict[int, Doorbell] = {}
        self._fence = Fence(lambda _: part.stamp())

    def receive(self, message: m.ToRemote) -> None:
        """Take a message of the home, in the thread that brings all of them.

        A control record that finds the task idle is carried out here and now. Tuples are brought by this very thread,
        so none can come meanwhile.
        """
        woken = self.part.receive(message, time.time())
        if isinstance(message, m.StartTask):
            task = message.task
            self._bells[task] = Doorbell()
            self.job_part.thread(f"{self.part.identity}-remote-{task}", lambda: self._run_task(task))
        elif woken and isinstance(message, m.SubBatch | m.StopTask):
            self._bells[message.task].ring()
        elif woken:
            while (record := self.part.take(message.task, time.time())) is not None:
                self._control(record)

    def flush_due(self) -> None:
        """Let every task send its dirty state home when its turn comes."""
        for number in list(self.part.tasks):
            if self.part.receive(self.part.flush_due(number), time.time()):
                self._bells[number].ring()

    def close(self) -> None:
        """End the tasks: their home is out of reach, or has given them up."""
        self.part.close()
        self.abort()

    def abort(self) -> None:
        """Wake every thread, so that it sees that it is to end."""
        for bell in list(self._bells.values()):
            bell.ring()

    def _run_task(self, task: int) -> None:
        bell = self._bells[task]
        with closing(self.job_part.processor(self.component, task, self.part.store, self.home)) as processor:
            while not (self.job_part.ended or self.part.closed):
                message = self.part.take(task, time.time())
                match message:
                    case None:
                        bell.wait()
                        continue
                    case m.SubBatch(_, _, batch):
                        began = time.perf_counter()
                        deliveries = processor.process(batch)
                        self._send(self.part.processed(message, deliveries, time.perf_counter() - began))
                    case _:
                        self._control(message)
                if isinstance(message, m.StopTask):
                    return

    def _control(self, message: m.ToRemote) -> None:
        assert isinstance(message, m.Label | m.Install | m.FlushRequest | m.StopTask), f"{message} is no control record"
        self._send(self.part.control(message))
        self.part.settle()

    def _send(self, messages: list[m.ToHome]) -> None:
        if not messages:
            return
        try:
            self.job_part.send_messages(self.home, self.part.identity, messages, self._fence)
        except NodeLost as error:
            # The home does all this again elsewhere as soon as it notices, or the job is lost with it.
            logger.info("%s: %s", self.part.identity, error)
            self.close()
