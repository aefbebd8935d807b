"""Connections of clients that push rows: what they send goes straight into the mailboxes of sources here."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.transport.duplex import Duplex
from dask_elastic.runtime.transport.lanes import is_plain
from dask_elastic.runtime.transport.push_protocol import ACKNOWLEDGED, OPERATION, cost_of
from dask_elastic.runtime.transport.wire import Buffers, Decoder, Header
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.hosting_node import HostingNode
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.vocab.errors import JobEnded, ProtocolError, SourceError, UnknownJob, UnknownOperator
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.node")

OFFER_SECONDS = 60.0


class PushServer:
    """Serves the connections of clients that push rows; each carries the rows of one client for one source.

    Parameters
    ----------
    node : HostingNode
        The node.
    """

    def __init__(self, node: HostingNode):
        self.node = node
        self._inlets: set[Inlet] = set()

    def handlers(self) -> dict[str, Any]:
        """Return the handlers by operation."""
        return {OPERATION: self.push}

    async def push(self, comm: Comm, lane: str = "comm") -> str:
        """Take what a client sends, until it closes the connection."""
        inlet = Inlet(self.node, comm, lane == "socket" and is_plain(comm))
        self._inlets.add(inlet)
        try:
            error = await inlet.duplex.ended()
            logger.debug("a client has closed its connection: %r", error)
        finally:
            self._inlets.discard(inlet)
            inlet.close()
        return "dont_reply"

    def close(self) -> None:
        """Close every connection."""
        for inlet in list(self._inlets):
            inlet.close()


class Inlet:
    """One connection of a client to the mailbox of one source.

    Parameters
    ----------
    node : HostingNode
        The node.
    comm : Comm
        The connection.
    plain : bool
        Whether a thread reads the socket of the comm.

    Notes
    -----
    While the mailbox is full, the thread that reads the connection waits: the client is not told that its rows were
    taken, and stops when its window is used up. Rows that arrive after the end of the source are dropped; ``ended``
    says how many batches were taken before.
    """

    def __init__(self, node: HostingNode, comm: Comm, plain: bool):
        self._node = node
        self._job_part: JobPart | None = None
        self._mailbox: Mailbox | None = None
        self._decoder = Decoder()
        self._batches = 0
        self._bytes = self._reported = 0
        self._lock = threading.Lock()
        self._taking = False
        self._source_ended = False
        self._refusing = False
        limit = node.channels.options.max_frame
        self.duplex = Duplex(self._handle, self._unsent, limit)
        self.duplex.start(comm, plain, accepted=True)

    def _handle(self, header: Header, parts: Buffers) -> None:
        if self._refusing:
            return
        try:
            self._handle_one(header, parts)
        except Exception as error:  # the client raises it
            logger.debug("rows of a client are refused: %r", error)
            self._refuse(error)

    def _handle_one(self, header: Header, parts: Buffers) -> None:
        match header:
            case ["rows", int(number), float() | None as due]:
                self._take(number, due, parts)
            case ["ask"]:
                self._report()
            case ["schema"] if len(parts) == 1:
                self._decoder.learn(bytes(parts[0]))
            case ["begin", str(job), int(generation), str(source), int(instance)]:
                self._begin(job, generation, ExecutorId(source, instance))
            case _:
                raise ProtocolError(f"a client that pushes rows sent {header!r:.200}: use one version of dask_elastic")

    def _begin(self, job: str, generation: int, source: ExecutorId) -> None:
        job_part = self._node.job_parts.get(job)
        address = self._node.address
        if job_part is None or job_part.spec.generation != generation:
            raise UnknownJob(f"worker {address} hosts no generation {generation} of job {job!r}")
        if job_part.ended:
            raise job_part.error or JobEnded(f"job {job!r} has ended: it takes no more rows. Submit it again.")
        thread = job_part.sources.get(source)
        if thread is None:
            raise UnknownOperator(f"worker {address} has no source {source} of job {job!r}")
        if not isinstance(thread.mailbox, Mailbox):
            raise SourceError("this source takes epochs of Spark only: job.send has no place in them")
        if thread.mailbox.closed:
            raise SourceError(f"source {source.component!r} of job {job!r} has ended: it takes no more rows")
        self._job_part, self._mailbox = job_part, thread.mailbox
        self.duplex.send((["begun"], []))
        self._mailbox.watch(self._note_end)

    def _take(self, number: int, due: float | None, parts: Buffers) -> None:
        mailbox = self._mailbox
        if mailbox is None:
            raise ProtocolError("a client sent rows before it said for which source")
        buffers = iter(parts)
        rows = self._decoder.rows(number, lambda: next(buffers))
        if rows is None:
            raise ProtocolError("a client sent a batch without rows")
        with self._lock:
            self._taking = not self._source_ended
        if not self._taking:
            return
        try:
            while not mailbox.offer(rows, OFFER_SECONDS, due):
                logger.debug("a client waits: the mailbox of its source has been full for %g s", OFFER_SECONDS)
            self._batches += 1
            self._bytes += cost_of(parts)
        except SourceError as error:
            logger.debug("%s", error)
        finally:
            with self._lock:
                self._taking = False
                ended = self._source_ended
        if ended:
            self._say_ended()
        elif self._bytes - self._reported >= ACKNOWLEDGED:
            self._report()

    def _report(self) -> None:
        self._reported = self._bytes
        self.duplex.send((["taken", self._batches, self._bytes], []))

    def _note_end(self) -> None:
        """Tell the client that the source has ended; called by the thread that ends it."""
        with self._lock:
            self._source_ended = True
            if self._taking:
                return  # the count of batches is about to change: the reading thread tells the client
        self._say_ended()

    def _say_ended(self) -> None:
        job_part = self._job_part
        self._refuse(None if job_part is None else job_part.error)

    def _refuse(self, error: BaseException | None) -> None:
        with self._lock:
            if self._refusing:
                return
            self._refusing = True
        parts = [] if error is None else [dump_error(error)]
        # The client closes the connection: closing it here could drop what the client has not read yet.
        self.duplex.send((["ended", self._batches], parts))
        # A client may stay connected for long; it must not keep the state of an ended job.
        self._job_part = self._mailbox = None

    def _unsent(self, error: BaseException) -> None:
        logger.debug("a client does not read its connection: %r", error)

    def close(self) -> None:
        """Close the connection; rows that it has received and not delivered are dropped."""
        mailbox = self._mailbox
        if mailbox is not None:
            mailbox.unwatch(self._note_end)
        self.duplex.close()
