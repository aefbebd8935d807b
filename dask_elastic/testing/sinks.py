"""The contract of sinks that take part in checkpoints, checked against crashes between every two steps."""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.staged_rows import StagedRows
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.topology.transactions import Transactions
from dask_elastic.vocab.errors import ElasticError

ReadBack = Callable[[Sink], Iterable[pa.RecordBatch] | pa.Table]

WRITE, PREPARE, COMPLETE, COMMIT = "write", "prepare", "complete the checkpoint", "commit"
FIRST_RUN = [
    *[WRITE, PREPARE, COMPLETE, COMMIT],
    # The checkpoint after the second write is given up, so that its rows are committed with the next one.
    *[WRITE, WRITE, PREPARE],
    *[WRITE, PREPARE, COMPLETE, COMMIT],
    *[PREPARE, COMPLETE, COMMIT],
    WRITE,
]
LAST_RUN = [WRITE, PREPARE, COMPLETE, WRITE, COMMIT, PREPARE, COMPLETE, COMMIT]
ROWS = 7
"""Rows that each write adds per instance."""

HANDLE_BYTES = 16_384
"""The largest pickled handle: manifests contain one per instance."""


class _Manifest(NamedTuple):
    """A complete checkpoint: its number, the rows before it, and what is to be committed."""

    checkpoint: int = 0
    position: int = 0
    handles: tuple[bytes, ...] = ()


def check_sink(make_sink: Callable[[], Sink], read_back: ReadBack) -> None:
    """Check that a sink keeps its promise when its writers are lost.

    A job with two writers takes checkpoints; one of them is given up. The job is restarted before each step: all
    writers are dropped without closing, a writer on another node recovers, is lost in the midst of it, and another one
    recovers again. It replays the rows after the newest complete checkpoint. The dropped writers continue to write,
    as a hung process may. Transactions are committed twice.

    Parameters
    ----------
    make_sink : callable
        Returns a sink whose destination is empty; called for each restart.
    read_back : callable
        Called with the sink; returns the rows that readers of its destination see, as a table or batches with the
        columns of the written rows, `number` (int64) and `text` (string), in any order.

    Raises
    ------
    AssertionError
        If a promise is broken: for "exactly-once", if the visible rows are not those of the committed checkpoints, each
        once; for "at-least-once", if rows are missing in the end; for "at-most-once", if one occurs twice.

    Examples
    --------
    >>> from dask_elastic.connectors import sinks
    >>> rows = []
    >>> def make():
    ...     rows.clear()
    ...     return sinks.Call(rows.append)
    >>> check_sink(make, lambda sink: rows)
    """
    for crash in range(len(FIRST_RUN) + 1):
        sink = make_sink()
        assert sink.promise is not None, f"{sink!r} promises nothing: set Sink.promise"
        job = _Job(sink, read_back, f"{crash:012x}", f"restarted after {FIRST_RUN[:crash]}")
        job.start(instances=2)
        job.take(FIRST_RUN[:crash])
        job.restart()
        job.take(LAST_RUN)
        job.end()


class _Job:
    """A job of one sink, whose rows are numbers."""

    def __init__(self, sink: Sink, read_back: ReadBack, run: str, when: str):
        self.sink = sink
        self.read_back = read_back
        self.run = run
        self.when = when
        self.generation = 0
        self.folder = CheckpointFolder(f"memory://check_sink/{run}-{uuid.uuid4().hex}")
        self.staging = StagedRows(self.folder)
        self.writers: list[SinkWriter] = []
        self.lost: list[SinkWriter] = []
        self.transactions: list[Transactions] = []
        self.position = self.visible = self.checkpoint = 0
        self.prepared_position = 0
        self.manifest = _Manifest()

    def start(self, instances: int) -> None:
        self.writers = [self._open(instance, node=instance) for instance in range(instances)]
        self.transactions = [Transactions() for _ in self.writers]

    def take(self, steps: list[str]) -> None:
        actions = {
            WRITE: self.write,
            PREPARE: self.prepare,
            COMPLETE: self.complete,
            COMMIT: self.commit,
        }
        for number, step in enumerate(steps):
            actions[step]()
            # What a write shows too early is seen before the next commit; reading back may be slow.
            if step in (PREPARE, COMMIT):
                self.check(f"{self.when}, generation {self.generation}, after {steps[: number + 1]}")

    def write(self) -> None:
        for writer in self.writers:
            writer.write(_rows(self.position, self.position + ROWS))
            self.position += ROWS

    def prepare(self) -> None:
        self.checkpoint += 1
        self.prepared_position = self.position
        for writer, transactions in zip(self.writers, self.transactions, strict=True):
            handle = writer.prepare(self.checkpoint)
            size = len(pickle.dumps(handle))
            assert size <= HANDLE_BYTES, f"{self.sink!r}: a handle of {size} bytes is too large for a manifest"
            transactions.add(self.checkpoint, handle)
        for hung in self.lost[:1]:
            self._continue(hung, self.checkpoint)

    def complete(self) -> None:
        handles = tuple(pickle.dumps(handle) for each in self.transactions for handle in each.handles)
        self.manifest = _Manifest(self.checkpoint, self.prepared_position, handles)

    def commit(self) -> None:
        for writer, transactions in zip(self.writers, self.transactions, strict=True):
            for handle in transactions.complete(self.manifest.checkpoint):
                writer.commit(handle)
                writer.commit(pickle.loads(pickle.dumps(handle)))
        self.visible = self.manifest.position

    def restart(self) -> None:
        """Lose all writers, and one more in its recovery; the next one gets the handles of all."""
        self.lost += self.writers
        handles = [pickle.loads(handle) for handle in self.manifest.handles]
        self.generation = next_generation(self.folder)
        unlucky = self._open(0, node=2)
        for handle in handles[:1]:
            unlucky.commit(handle)
        self.lost.append(unlucky)
        self.generation = next_generation(self.folder)
        writer = self._open(0, node=3)
        writer.recover(handles, self.manifest.checkpoint)
        self.writers, self.transactions = [writer], [Transactions()]
        self.position = self.visible = self.manifest.position
        self.check(f"{self.when}, recovered")
        for hung in self.lost:
            self._continue(hung, self.checkpoint + 1)

    def end(self) -> None:
        for writer in self.writers:
            writer.close()
        for hung in self.lost:
            hung.abort()
        self.visible = self.position
        self.check(f"{self.when}, at the end", whole=True)

    def check(self, when: str, whole: bool = False) -> None:
        if self.sink.promise != "exactly-once" and not whole:
            return
        found = self.read_back(self.sink)
        batches = found.to_batches() if isinstance(found, pa.Table) else list(found)
        counts = Counter(number for batch in batches for number in batch.column("number").to_pylist())
        missing = sorted(set(range(self.visible)) - counts.keys())
        repeated = sorted(number for number, count in counts.items() if number >= 0 and count > 1)
        early = sorted(number for number in counts if number >= self.visible or number < 0)
        promise = self.sink.promise
        assert promise == "at-most-once" or not missing, f"{self.sink!r}, {when}: rows {missing} are missing"
        assert promise == "at-least-once" or not repeated, f"{self.sink!r}, {when}: rows {repeated} are repeated"
        assert promise != "exactly-once" or not early, f"{self.sink!r}, {when}: rows {early} are visible uncommitted"
        texts = {text for batch in batches for text in batch.column("text").to_pylist()}
        assert texts <= {str(number) for number in counts}, f"{self.sink!r}, {when}: columns of rows are mixed up"

    def _open(self, instance: int, node: int) -> SinkWriter:
        return self.sink.open(
            SinkContext(
                "check",
                "sink",
                node=node,
                instance=instance,
                run=self.run,
                checkpoints=True,
                generation=self.generation,
                restored=self.generation > 0,
                staging=self.staging,
            )
        )

    def _continue(self, hung: SinkWriter, checkpoint: int) -> None:
        """Let a writer that was given up write and prepare, which may fail and must not become visible."""
        if self.sink.promise != "exactly-once":
            return
        try:
            hung.write(_rows(-ROWS, 0))
            hung.prepare(checkpoint)
        except (ElasticError, OSError):
            return


def _rows(start: int, stop: int) -> pa.RecordBatch:
    numbers = range(start, stop)
    columns = {"number": pa.array(numbers, pa.int64()), "text": pa.array([str(number) for number in numbers])}
    return pa.RecordBatch.from_pydict(columns)
