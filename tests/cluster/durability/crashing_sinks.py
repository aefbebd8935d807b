"""Sinks whose process is killed once, exactly before or after a step of their writer."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
import uuid
from pathlib import Path

import pyarrow as pa

from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter

POINTS = tuple((step, when) for step in ("prepare", "commit") for when in ("before", "after"))
AMID = ("prepare", "amid")
"""For a queue only: its readers have taken some of the batches that the step waits for."""


class Crashing(Sink):
    """Another sink, one of whose writers kills its process with SIGKILL, once in all runs.

    Parameters
    ----------
    sink : Sink
        The sink.
    mark : path
        A file that the process creates before it dies, so that no other one does.
    step : str
        Where: "prepare" or "commit".
    when : str
        "before", "amid" or "after" the step of the sink itself.
    rows : int
        Only once the writer has written so many rows.
    """

    def __init__(self, sink: Sink, mark: Path, step: str, when: str, rows: int = 1):
        self.promise = sink.promise
        self.sink, self.mark, self.step, self.when, self.rows = sink, mark, step, when, rows

    def open(self, context: SinkContext) -> SinkWriter:
        """Open a writer of the sink."""
        if self.when == "amid":
            context = dataclasses.replace(context, outbox=_HalfDrained(self, context.outbox))
        return _Writer(self, self.sink.open(context))

    @property
    def drains(self) -> Path:
        """A file with a name of the moment at which a queue waits for its readers and its process is to die."""
        return self.mark.with_name("drains")

    def crash(self) -> None:
        """Kill this process, if none was killed."""
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class _HalfDrained:
    """An outbox that keeps batches until they must be taken; its process dies when readers have taken one of them."""

    def __init__(self, crashing: Crashing, outbox):
        self._crashing, self._outbox, self._kept = crashing, outbox, []
        self.open = outbox.open
        crashing.drains.write_text("")

    def put(self, queue: str, limit: int, rows: pa.RecordBatch) -> None:
        self._kept.append((queue, limit, rows))

    def drain(self, queue: str) -> None:
        dies = len(self._kept) > 1 and not self._crashing.mark.exists()
        self._crashing.drains.write_text(uuid.uuid4().hex if dies else "")
        offered = self._kept[:3] if dies else self._kept
        for kept in offered:
            self._outbox.put(*kept)
        while dies and len(self._outbox._held) >= len(offered):
            time.sleep(0.005)
        if dies:
            self._crashing.crash()
        self._kept.clear()
        self._outbox.drain(queue)


class _Writer(SinkWriter):
    def __init__(self, crashing: Crashing, writer: SinkWriter):
        self._crashing, self._writer, self._rows = crashing, writer, 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write(rows)
        self._rows += rows.num_rows

    def prepare(self, checkpoint: int) -> object | None:
        self._crash("prepare", "before")
        prepared = self._writer.prepare(checkpoint)
        self._crash("prepare", "after")
        return prepared

    def commit(self, prepared: object) -> None:
        self._crash("commit", "before")
        self._writer.commit(prepared)
        self._crash("commit", "after")

    def recover(self, prepared, checkpoint: int) -> None:
        self._writer.recover(prepared, checkpoint)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()

    def _crash(self, step: str, when: str) -> None:
        crashing = self._crashing
        if (step, when) != (crashing.step, crashing.when) or self._rows < crashing.rows:
            return
        crashing.crash()
