"""Drives the tasks of one executor on a remote node; the runtime and the simulator run the same code."""

from __future__ import annotations

from functools import partial

from dask_elastic.executor.drivers.host import Bell, RemoteHost, ring
from dask_elastic.executor.drivers.processing import processed
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.remote import RemotePart
from dask_elastic.vocab import messages as m


class RemoteDriver:
    """Runs the remote tasks of one executor on a host.

    Calls of the part that other threads may come between are acts, so that the simulator interleaves them.

    Parameters
    ----------
    part : RemotePart
        Their queues and state.
    host : RemoteHost
        Threads and the channel to the home, or their simulation.
    """

    def __init__(self, part: RemotePart, host: RemoteHost):
        self.part = part
        self.host = host
        self._bells: dict[int, Bell] = {}
        self._processors: dict[int, Processor] = {}

    def receive(self, message: m.ToRemote) -> Steps[None]:
        """Take a message of the home that `RemotePart.admit` let pass, in the order of arrival.

        If the task is idle, the caller carries a control record out at once, and processes a sub-batch that is expected
        to be short. The caller brings all messages, so none can arrive in the meantime. One that takes longer but is
        brief is left to a thread that may wait for its turn.
        """
        woken = self.part.receive(message, self.host.now())
        if isinstance(message, m.StartTask):
            self._bells[message.task] = self.host.bell()
            self.host.start(f"remote-{message.task}", self._run_task(message.task))
        elif woken and not self.part.is_short(message):
            if not (self.part.is_brief(message) and self.host.leave_run(self._run_left(message.task))):
                yield from ring(self._bells.get(message.task))
        elif woken:
            while (taken := (yield partial(self.part.take, message.task, self.host.now()))) is not None:
                yield from self._carry_out(taken)

    def flush_due(self) -> None:
        """Queue a flush request at every task that has changed state since its last flush."""
        for request in self.part.flush_due():
            if self.part.receive(request, self.host.now()) and (bell := self._bells.get(request.task)) is not None:
                bell.ring()

    def close(self) -> None:
        """End the tasks: their home is out of reach, or has begun another incarnation."""
        self.part.close()
        self.wake_all()

    def wake_all(self) -> None:
        """Wake every task, so that it sees that it is to end."""
        for bell in list(self._bells.values()):
            bell.ring()

    def _run_task(self, task: int) -> Steps[None]:
        with self.host.processor(task) as processor:
            self._processors[task] = processor
            while not self._ended:
                message = yield partial(self.part.take, task, self.host.now())
                if message is None:
                    yield self._bells[task].wait
                    continue
                yield from self._carry_out(message)
                if isinstance(message, m.StopTask):
                    del self._processors[task], self._bells[task]
                    return

    def _run_left(self, task: int) -> Steps[None]:
        """Process the sub-batch that has woken an idle task; its own thread continues if more has arrived since.

        If another thread has got this, because the one that runs idle tasks is blocked, the task's own thread does it.
        """
        if self.host.haste() is not Haste.RUNS:
            yield from ring(self._bells.get(task))
            return
        taken = yield partial(self.part.take, task, self.host.now())
        if taken is not None:
            yield from self._carry_out(taken)
            if self.part.end_run(task):
                yield from ring(self._bells.get(task))

    def _carry_out(self, message: m.ToRemote) -> Steps[None]:
        if isinstance(message, m.SubBatch):
            processor = self._processors[message.task]
            outputs, busy = yield partial(processed, self.host, processor, message.batch, lambda: self._ended)
            yield from self._send((yield partial(self.part.processed, message, outputs, busy)))
            return
        assert isinstance(message, m.Label | m.Install | m.FlushRequest | m.StopTask), f"{message} is no control record"
        yield from self._send((yield partial(self.part.control, message)))
        if isinstance(message, m.Label):
            yield self.part.settle

    @property
    def _ended(self) -> bool:
        return self.host.ended or self.part.closed

    def _send(self, messages: list[m.ToHome]) -> Steps[None]:
        if messages and not (yield partial(self.host.send, messages)):
            # If this node is lost, the home replays these sub-batches elsewhere; if the home is lost, the job fails.
            self.close()
