"""One instance of a sink on a thread of its own: it writes the outputs of the instances on its node."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

import pyarrow as pa

from dask_elastic.executor.inputs import Inputs
from dask_elastic.runtime.worker.buffers.output_buffer import OutputBuffer
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ElasticError, SinkError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark


class SinkThread:
    """Writes the outputs of the instances on this node.

    Parameters
    ----------
    job : str
        Name of the job.
    identity : ExecutorId
        Which instance of which sink; its number is the node.
    sink : Sink
        The sink.
    inputs : Inputs
        The upstream instances on this node.
    threads : JobThreads
        Runs the thread.
    exchange : Exchange
        Returns credit.
    output_buffer : OutputBuffer
        Holds the rows of output queues.
    finished : callable
        Called when everything is written.
    """

    def __init__(
        self,
        job: str,
        identity: ExecutorId,
        sink: Sink,
        inputs: Inputs,
        threads: JobThreads,
        exchange: Exchange,
        output_buffer: OutputBuffer,
        finished: Callable[[ExecutorId], None],
    ):
        self.identity = identity
        self.sink = sink
        self.threads = threads
        self.exchange = exchange
        self._context = SinkContext(job, identity.component, identity.index, identity.index, output_buffer)
        self._finished = finished
        self.rows = 0
        self.inputs = inputs
        self._waiting: SimpleQueue[tuple[ExecutorId, Batch | Watermark | None, int] | None] = SimpleQueue()
        self._writer: SinkWriter | None = None

    def start(self) -> None:
        """Start writing."""
        self.threads.start(str(self.identity), self._run)

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Take a batch."""
        self._waiting.put((origin, batch, nbytes))

    def receive_watermark(self, watermark: Watermark) -> None:
        """Take a watermark of an upstream instance."""
        self._waiting.put((watermark.origin, watermark, 0))

    def input_ended(self, origin: ExecutorId) -> None:
        """Take the end of an upstream instance."""
        self._waiting.put((origin, None, 0))

    def abort(self) -> None:
        """Wake the thread, so that it sees that the job has ended."""
        self._waiting.put(None)

    def collected(self) -> list[pa.RecordBatch]:
        """Return the batches that the writer keeps for the client."""
        return [] if self._writer is None else self._writer.collected()

    def _run(self) -> None:
        try:
            self._writer = self.sink.open(self._context)
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
            self._finished(self.identity)

    def _write_all(self, writer: SinkWriter) -> bool:
        while self.inputs.open:
            taken = self._waiting.get()
            if taken is None or self.threads.ended:
                return False
            origin, item, nbytes = taken
            match item:
                case None:
                    self.inputs.end(origin)
                case Watermark():
                    self.inputs.advance(item)
                case Batch():
                    writer.write(item.rows)
                    self.rows += item.rows.num_rows
                    self.exchange.release(origin, self.identity, nbytes)
        writer.close()
        return True
