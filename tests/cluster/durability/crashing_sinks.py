"""Sinks whose process is killed once, exactly before or after a step of their writer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa

from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter

POINTS = tuple((step, when) for step in ("prepare", "commit") for when in ("before", "after"))


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
        "before" or "after" the step of the sink itself.
    rows : int
        Only once the writer has written so many rows.
    """

    def __init__(self, sink: Sink, mark: Path, step: str, when: str, rows: int = 1):
        self.promise = sink.promise
        self.sink, self.mark, self.step, self.when, self.rows = sink, mark, step, when, rows

    def open(self, context: SinkContext) -> SinkWriter:
        """Open a writer of the sink."""
        return _Writer(self, self.sink.open(context))


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
        try:
            os.close(os.open(crashing.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
