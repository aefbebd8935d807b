"""Checks the promise of watermarks against the rows of a simulated job."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark


class EventTimes:
    """Compares the event times of rows with watermarks, wherever the rows have the column of event time.

    Parameters
    ----------
    column : str
        The column, of distinct timestamps. Batches without it are not checked, and none is if it is empty.

    Attributes
    ----------
    excused : set of int
        Event times of the rows that may be older than a watermark before them.

    Notes
    -----
    A row may be older than a watermark before it if it was late at its source, or if its input was idle and the
    receiver's watermark had passed the row's time when the input became active again.
    """

    def __init__(self, column: str):
        self.column = column
        self.excused: set[int] = set()
        self._rejoined: dict[tuple[ExecutorId, ExecutorId], int] = {}

    def leave_source(self, rows: pa.RecordBatch, watermark: int | None) -> None:
        """Excuse the rows of a source that are older than its last watermark."""
        if self.column and watermark is not None:
            self.excused.update(time for time in self._times(rows) if time < watermark)

    def check(self, inputs: Inputs, origin: ExecutorId, rows: pa.RecordBatch) -> None:
        """Check a batch that reaches an executor or a sink.

        Raises
        ------
        ProtocolError
            If a row is older than a watermark before it and is not excused.
        """
        if inputs.time is None or self.column not in rows.schema.names:
            return
        rejoined = self._rejoined.get((inputs.receiver, origin))
        for time in self._times(rows):
            if time >= inputs.time or time in self.excused:
                continue
            if rejoined is None or time >= rejoined:
                raise ProtocolError(
                    f"{inputs.receiver}: a row of {origin} has event time {time}, behind watermark {inputs.time}"
                )
            self.excused.add(time)

    def note(self, inputs: Inputs, watermark: Watermark) -> None:
        """Remember the receiver's watermark when an idle input becomes active; call it before `inputs` changes."""
        if inputs.is_idle(watermark.origin) and not watermark.idle and inputs.time is not None:
            self._rejoined[inputs.receiver, watermark.origin] = inputs.time

    def _times(self, rows: pa.RecordBatch) -> list[int]:
        if self.column not in rows.schema.names:
            return []
        times: list[int] = rows.column(self.column).cast(pa.timestamp("us")).view(pa.int64()).drop_null().to_pylist()
        return times
