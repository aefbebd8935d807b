"""Connections of clients that push rows: what they send goes straight into the mailboxes of sources here."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.transport.duplex import Duplex
from dask_elastic.runtime.transport.lanes import is_plain
from dask_elastic.runtime.transport.push_protocol import ACKNOWLEDGED, OPERATION, cost_of
from dask_elastic.runtime.transport.wire import Buffers, Decoder, Header
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox, SentBatch
from dask_elastic.runtime.worker.buffers.spool import Spool
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


class Count(NamedTuple):
    """Batches and bytes of a connection so far.

    Parameters
    ----------
    batches, bytes : int
        How many.
    """

    batches: int
    bytes: int


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
    The thread that reads the connection sends small batches on itself while the source is idle; see `Shortcut`. While
    the mailbox is full, it waits: the client is not told that its rows were taken, and stops when its window is used
    up. Rows that arrive after the end of the source are dropped; ``ended`` says how many batches were taken before. If
    the source makes rows durable, they count as taken once they are.
    """

    def __init__(self, node: HostingNode, comm: Comm, plain: bool):
        self._node = node
        self._job_part: JobPart | None = None
        self._mailbox: Mailbox | None = None
        # Where rows wait for `bring`.
        self._brought: Mailbox | None = None
        self._decoder = Decoder()
        self._spool: Spool | None = None
        self._sender = ""
        # Batches and bytes in the mailbox, and those of them that count as taken.
        self._batches = self._bytes = 0
        self._taken = Count(0, 0)
        self._reported = 0
        self._asked: int | None = None
        # What will count as taken when the spool has made an entry durable.
        self._waiting: deque[tuple[int, Count]] = deque()
        self._counting = threading.Lock()
        self._lock = threading.Lock()
        self._taking = False
        self._source_ended = False
        self._refusing = False
        limit = node.channels.options.max_frame
        self.duplex = Duplex(self._handle, self._unsent, limit, self._bring)
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
            case ["rows", int(number), float() | None as due, int(sequence)]:
                self._take(number, due, sequence, parts)
            case ["ask"]:
                self._ask()
            case ["schema"] if len(parts) == 1:
                self._decoder.learn(bytes(parts[0]))
            case ["begin", str(job), int(generation), str(source), int(instance), str(sender)]:
                self._begin(job, generation, ExecutorId(source, instance), sender)
            case _:
                raise ProtocolError(f"a client that pushes rows sent {header!r:.200}: use one version of dask_elastic")

    def _begin(self, job: str, generation: int, source: ExecutorId, sender: str) -> None:
        job_part = self._node.job_parts.get(job)
        address = self._node.address
        if job_part is None or job_part.spec.generation != generation:
            raise UnknownJob(f"worker {address} hosts no generation {generation} of job {job!r}")
        _check_runs(job_part, job)
        thread = job_part.sources.get(source)
        if thread is None:
            raise UnknownOperator(f"worker {address} has no source {source} of job {job!r}")
        if not isinstance(thread.mailbox, Mailbox):
            raise SourceError("this source takes epochs of Spark only: job.send has no place in them")
        if thread.mailbox.closed:
            # The end of the part closes the mailbox, too. A client takes the end of the source itself as final.
            _check_runs(job_part, job)
            raise SourceError(f"source {source.component!r} of job {job!r} has ended: it takes no more rows")
        self._job_part, self._mailbox, self._sender = job_part, thread.mailbox, sender
        self._spool = thread.mailbox.spool
        last = 0
        if self._spool is not None:
            last = self._spool.last_of(sender)
            while not self._spool.wait_durable(OFFER_SECONDS):
                if job_part.ended or self._spool.stopped:
                    raise JobEnded(f"job {job!r} has ended before rows of this client were durable")
            self._spool.watch(self._note_durable)
        self.duplex.send((["begun", last], []))
        self._mailbox.watch(self._note_end)

    def _take(self, number: int, due: float | None, sequence: int, parts: Buffers) -> None:
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
            sent = SentBatch(self._sender, sequence)
            self._brought = mailbox
            nbytes = sum(map(len, parts))
            while not mailbox.offer(rows, OFFER_SECONDS, due, sent, brings=True, nbytes=nbytes):
                logger.debug("a client waits: the mailbox of its source has been full for %g s", OFFER_SECONDS)
            self._count(cost_of(parts))
        except SourceError as error:
            logger.debug("%s", error)
        finally:
            with self._lock:
                self._taking = False
                ended = self._source_ended
        if ended:
            self._say_ended()
        else:
            self._report_if_due()

    def _bring(self) -> None:
        """Let the rows go on that have arrived at once."""
        mailbox, self._brought = self._brought, None
        if mailbox is not None:
            mailbox.bring()

    def _count(self, cost: int) -> None:
        """Count a batch that is in the mailbox, and was therefore accepted by the spool."""
        self._batches += 1
        self._bytes += cost
        count = Count(self._batches, self._bytes)
        spool = self._spool
        with self._counting:
            # The newest entry may be one of another client: this one is durable before it.
            if spool is None or spool.durable >= (newest := spool.newest):
                self._taken = count
            else:
                self._waiting.append((newest, count))

    def _note_durable(self, number: int) -> None:
        """Count what is durable now, in the thread of the spool."""
        with self._counting:
            while self._waiting and self._waiting[0][0] <= number:
                self._taken = max(self._taken, self._waiting.popleft()[1])
        self._report_if_due()

    def _ask(self) -> None:
        """Answer when all that came before is taken."""
        with self._counting:
            self._asked = self._batches
        self._report_if_due()

    def _report_if_due(self) -> None:
        with self._counting:
            answers = self._asked is not None and self._taken.batches >= self._asked
            if not answers and self._taken.bytes - self._reported < ACKNOWLEDGED:
                return
            if answers:
                self._asked = None
            self._reported = self._taken.bytes
            taken = self._taken
        self.duplex.send((["taken", *taken], []))

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
        self._unwatch()
        parts = [] if error is None else [dump_error(error)]
        # The client closes the connection: closing it here could drop what the client has not read yet.
        self.duplex.send((["ended", self._taken.batches], parts))
        # A client may stay connected for long; it must not keep the state of an ended job.
        self._job_part = self._mailbox = self._spool = None

    def _unsent(self, error: BaseException) -> None:
        logger.debug("a client does not read its connection: %r", error)

    def close(self) -> None:
        """Close the connection; rows that it has received and not delivered are dropped."""
        self._unwatch()
        self.duplex.close()

    def _unwatch(self) -> None:
        """Leave nothing of this connection at a source that goes on."""
        if (mailbox := self._mailbox) is not None:
            mailbox.unwatch(self._note_end)
        if (spool := self._spool) is not None:
            spool.unwatch(self._note_durable)


def _check_runs(job_part: JobPart, job: str) -> None:
    if job_part.ended:
        ended = JobEnded(f"job {job!r} has ended: it takes no more rows. Submit it again.")
        raise ended if job_part.error is None else job_part.error
