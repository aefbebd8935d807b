"""Drives the tasks of one executor on a remote node; the runtime and the simulation run this very code."""

from __future__ import annotations

from functools import partial

from dask_elastic.executor.drivers.host import Bell, RemoteHost
from dask_elastic.executor.drivers.steps import Steps
from dask_elastic.executor.remote import RemotePart
from dask_elastic.vocab import messages as m


class RemoteDriver:
    """Runs the remote tasks of one executor on a host.

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

    def receive(self, message: m.ToRemote) -> Steps[None]:
        """Take a message of the home that `RemotePart.admit` let pass, in the order of arrival.

        A control record that finds its task idle is carried out at once by the caller. The caller brings the tuples as
        well, so none can come in between.
        """
        woken = self.part.receive(message, self.host.now())
        if isinstance(message, m.StartTask):
            self._bells[message.task] = self.host.bell()
            self.host.start(f"remote-{message.task}", self._run_task(message.task))
        elif woken and isinstance(message, m.SubBatch | m.StopTask):
            yield self._bells[message.task].ring
        elif woken:
            while (record := self.part.take(message.task, self.host.now())) is not None:
                yield from self._control(record)

    def flush_due(self) -> None:
        """Let every task send its dirty state home when its turn comes."""
        for task in list(self.part.tasks):
            if self.part.receive(self.part.flush_due(task), self.host.now()):
                self._bells[task].ring()

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
            while not (self.host.ended or self.part.closed):
                message = self.part.take(task, self.host.now())
                match message:
                    case None:
                        yield self._bells[task].wait
                        continue
                    case m.SubBatch(batch=batch):
                        outputs, busy = yield partial(self.host.process, processor, batch)
                        yield from self._send(self.part.processed(message, outputs, busy))
                    case _:
                        yield from self._control(message)
                if isinstance(message, m.StopTask):
                    return

    def _control(self, message: m.ToRemote) -> Steps[None]:
        assert isinstance(message, m.Label | m.Install | m.FlushRequest | m.StopTask), f"{message} is no control record"
        yield from self._send(self.part.control(message))
        self.part.settle()

    def _send(self, messages: list[m.ToHome]) -> Steps[None]:
        if messages and not (yield partial(self.host.send, messages)):
            # The home replays all of this elsewhere as soon as it notices, or the job is lost with it.
            self.close()
