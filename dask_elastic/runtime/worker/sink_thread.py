"""One instance of a sink on a thread of its own: it takes what leaves its node."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.executor.inputs import Inputs
from dask_elastic.topology.operators import SinkOperator
from dask_elastic.topology.sink import SinkContext, SinkWriter
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ElasticError, SinkError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.job_part import JobPart


class SinkThread:
    """Writes what the instances on this node put out.

    Parameters
    ----------
    job_part : JobPart
        The job's part on this node.
    identity : ExecutorId
        Which instance of which sink.
    operator : SinkOperator
        The sink.
    inputs : Inputs
        The upstream instances on this node.
    """

    def __init__(self, job_part: JobPart, identity: ExecutorId, operator: SinkOperator, inputs: Inputs):
        self.job_part = job_part
        self.identity = identity
        self.sink = operator.sink
        self.rows = 0
        self.inputs = inputs
        self._waiting: SimpleQueue[tuple[ExecutorId, Batch | Watermark | None, int] | None] = SimpleQueue()
        self._writer: SinkWriter | None = None

    def start(self) -> None:
        """Begin to write."""
        self.job_part.thread(str(self.identity), self._run)

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Bring a batch."""
        self._waiting.put((origin, batch, nbytes))

    def hear(self, said: Watermark) -> None:
        """Take what an upstream instance says of event time."""
        self._waiting.put((said.origin, said, 0))

    def input_ended(self, origin: ExecutorId) -> None:
        """Say that an upstream instance has sent its last batch."""
        self._waiting.put((origin, None, 0))

    def abort(self) -> None:
        """Make the thread see that the job has ended."""
        self._waiting.put(None)

    def collected(self) -> list[pa.RecordBatch]:
        """Return what the writer keeps for the client."""
        return [] if self._writer is None else self._writer.collected()

    def _run(self) -> None:
        node = self.job_part.node
        context = SinkContext(
            self.job_part.job, self.identity.component, node, self.identity.index, self.job_part.outbox
        )
        try:
            self._writer = self.sink.open(context)
            complete = False
            try:
                complete = self._write_all(self._writer)
            finally:
                if not complete:
                    self._writer.abort()
        except ElasticError:
            raise
        except Exception as error:
            name = self.identity.component
            raise SinkError(f"sink {name!r} failed: {type(error).__name__}: {error}") from error
        if complete:
            self.job_part.sink_ended(self.identity)

    def _write_all(self, writer: SinkWriter) -> bool:
        while self.inputs.open:
            taken = self._waiting.get()
            if taken is None or self.job_part.ended:
                return False
            origin, what, nbytes = taken
            match what:
                case None:
                    self.inputs.end(origin)
                case Watermark():
                    self.inputs.advance(what)
                case Batch():
                    writer.write(what.rows)
                    self.rows += what.rows.num_rows
                    self.job_part.release(origin, self.identity, nbytes)
        writer.close()
        return True
