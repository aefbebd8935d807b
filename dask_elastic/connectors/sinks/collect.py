"""A sink that keeps its rows in the workers' memory until the client fetches them."""

from __future__ import annotations

import pyarrow as pa
from dask.utils import format_bytes, parse_bytes

from dask_elastic.topology.sink import Promise, Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError


class Collect(Sink):
    """Keep the results in the workers' memory, for `job.collect` to fetch.

    Parameters
    ----------
    limit : str or int, default "256MiB"
        Bytes that each instance may keep. The job fails when an instance exceeds it.
    promise : {"at-most-once"}, optional
        Jobs with checkpoints refuse this sink, because a restart loses the rows in memory, unless this allows it: the
        sink then has the rows since the restart.

    Raises
    ------
    TopologyError
        When the limit is not a size above 0, or the promise is another one.

    Examples
    --------
    >>> writer = Collect(limit="1MiB").open(SinkContext("job", "results"))
    >>> writer.write(pa.RecordBatch.from_pydict({"a": [1, 2]}))
    >>> [rows.to_pydict() for rows in writer.collected()]
    [{'a': [1, 2]}]
    """

    def __init__(self, limit: str | int = "256MiB", *, promise: Promise | None = None):
        try:
            self.limit = int(parse_bytes(str(limit)))
        except ValueError as error:
            raise TopologyError(f'sinks.Collect: limit is {limit!r}; give bytes, or a text like "256MiB".') from error
        if self.limit <= 0:
            raise TopologyError(f"sinks.Collect: limit is {limit!r}; give a size above 0.")
        if promise not in (None, "at-most-once"):
            raise TopologyError(f'sinks.Collect: promise is {promise!r}; it can only promise "at-most-once".')
        self.promise = promise

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        return f"Collect(limit={format_bytes(self.limit).replace(' ', '')!r})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer that keeps its rows in memory.

        Parameters
        ----------
        context : SinkContext
            The job, operator and instance, for error texts.

        Returns
        -------
        SinkWriter
            The writer. Its `write` raises `SinkError` when the rows exceed the limit.
        """
        return _Keeper(self.limit, context)


class _Keeper(SinkWriter):
    def __init__(self, limit: int, context: SinkContext):
        self._limit = limit
        self._context = context
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._dictionaries: set[int] = set()

    def write(self, rows: pa.RecordBatch) -> None:
        more = sum(self._size(column) for column in rows.columns)
        if self._bytes + more > self._limit:
            context = self._context
            kept = sum(batch.num_rows for batch in self._batches)
            raise SinkError(
                f"sink {context.operator!r} of job {context.job!r}, instance {context.instance}: {kept} rows are kept, "
                f"and {rows.num_rows} more would make {format_bytes(self._bytes + more)}, over the limit of "
                f'{format_bytes(self._limit)}. Raise it, as in sinks.Collect(limit="1GiB"), or use sinks.Parquet.'
            )
        self._bytes += more
        self._batches.append(rows)

    def close(self) -> None:
        return None

    def abort(self) -> None:
        self._batches = []

    def prepare(self, checkpoint: int) -> object | None:
        return None

    def collected(self) -> list[pa.RecordBatch]:
        return list(self._batches)

    def _size(self, column: pa.Array) -> int:
        if not isinstance(column, pa.DictionaryArray):
            return int(column.nbytes)
        # Slices of one batch share their dictionary: count it once, not once per slice.
        address = max((buffer.address for buffer in column.dictionary.buffers() if buffer is not None), default=0)
        known = address in self._dictionaries
        self._dictionaries.add(address)
        return int(column.indices.nbytes) + (0 if known else int(column.dictionary.nbytes))
