"""What watermarks promise, checked against the rows of a simulated job."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.inputs import Inputs
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark


class EventTimes:
    """Follows the event time of rows that keep its column on their way.

    Parameters
    ----------
    column : str
        The column; timestamps, no two rows alike. Batches without it are not looked at, nor any if it is empty.

    Attributes
    ----------
    excused : set of int
        The times of the rows that may be older than a watermark before them.

    Notes
    -----
    A row may be older than a watermark before it if it was late at its source, or if it came of an input for which
    nobody waited, since it was idle, and the receiver's time was past the row's when it said that it no longer is.
    """

    def __init__(self, column: str):
        self.column = column
        self.excused: set[int] = set()
        self._rejoined: dict[tuple[ExecutorId, ExecutorId], int] = {}

    def leaves(self, rows: pa.RecordBatch, said: int | None) -> None:
        """Note which rows of a source are older than what it has said."""
        if self.column and said is not None:
            self.excused.update(time for time in self._times(rows) if time < said)

    def arrives(self, inputs: Inputs, origin: ExecutorId, rows: pa.RecordBatch) -> None:
        """Check a batch that reaches an executor or a sink.

        Raises
        ------
        ProtocolError
            If a row is older than a watermark before it without an excuse.
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

    def hears(self, inputs: Inputs, said: Watermark) -> None:
        """Note that an input of a receiver, which was idle, is not any more, if it is one."""
        if inputs.is_idle(said.origin) and not said.idle and inputs.time is not None:
            self._rejoined[inputs.receiver, said.origin] = inputs.time

    def _times(self, rows: pa.RecordBatch) -> list[int]:
        if self.column not in rows.schema.names:
            return []
        times: list[int] = rows.column(self.column).cast(pa.timestamp("us")).view(pa.int64()).drop_null().to_pylist()
        return times
