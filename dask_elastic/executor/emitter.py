"""Emitter of a component: runs fused stateless operators, then hashes and splits rows for the next receivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy, Errors, RunRange
from dask_elastic.routing.hashing import hash_keys
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.split import split_by_executor
from dask_elastic.topology.component import Branch, Exit, edges
from dask_elastic.topology.operators import Stateless
from dask_elastic.topology.schema import check_schema, plain_schema, plain_type
from dask_elastic.topology.windows.late_rows import LateRows
from dask_elastic.vocab.batch import MAX_BATCH_ROWS, Batch, Delivery
from dask_elastic.vocab.column_types import ColumnTypes
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.row_bytes import RowBytes

MAX_BATCH_BYTES = 16 * 2**20
"""Larger batches are sliced, so that credit and memory stay fine-grained."""


class Emitter:
    """Routes the outputs of one thread of a component; not shared between threads.

    Parameters
    ----------
    component : str
        Name of the component.
    outputs : tuple of Branch or Exit
        What follows the component's operator.
    spaces : mapping of str to KeySpace
        Key space of each stateful component.
    error_policy : ErrorPolicy
        Runs the user code of stateless operators.
    sink_instance : int
        The instance of each sink that gets the rows: the one at the executor's home.

    Attributes
    ----------
    edge_rows : dict of (str, str) to int
        Rows passed on so far, by the names of producer and consumer. It has all keys from the start.
    """

    def __init__(
        self,
        component: str,
        outputs: tuple[Branch | Exit, ...],
        spaces: Mapping[str, KeySpace],
        error_policy: ErrorPolicy,
        sink_instance: int,
    ):
        self.component = component
        self.error_policy = error_policy
        self._spaces = spaces
        self._sink_instance = sink_instance
        self._doors: dict[Exit, _Door] = {}
        self.edge_rows = dict.fromkeys(edges(component, outputs), 0)
        steps = self._steps_of(outputs)
        self._late: list[_Step] = [
            step for step in steps if not isinstance(step, _Door) and isinstance(step[0], LateRows)
        ]
        self._steps = [step for step in steps if step not in self._late]

    def _steps_of(self, outputs: tuple[Branch | Exit, ...]) -> list[_Step]:
        return [self._door(o) if isinstance(o, Exit) else (o.operator, self._steps_of(o.then)) for o in outputs]

    def _door(self, exit_: Exit) -> _Door:
        # Equal exits share a door, and so the schema of their stream.
        if exit_ not in self._doors:
            space = self._spaces[exit_.target] if exit_.keys else None
            self._doors[exit_] = _Door(self.component, exit_, space, self._sink_instance)
        return self._doors[exit_]

    @property
    def has_outputs(self) -> bool:
        """Whether any operator or sink reads the component's outputs, apart from late rows."""
        return bool(self._steps)

    def emit(
        self, batches: Iterable[pa.RecordBatch], stamp: float, late: Iterable[pa.RecordBatch] = ()
    ) -> list[Delivery]:
        """Route output batches of the component's operator.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch
            Output, in order.
        stamp : float
            When the oldest input row of the outputs was due to leave its source.
        late : iterable of pyarrow.RecordBatch
            Input rows that came too late for the operator's windows, for those consumers that read only these.

        Returns
        -------
        list of Delivery
            In order; rows for one executor keep their order.
        """
        deliveries: list[Delivery] = []
        self._follow(self._steps, batches, self.component, stamp, deliveries)
        self._follow(self._late, late, self.component, stamp, deliveries)
        return deliveries

    def _follow(
        self,
        steps: list[_Step],
        batches: Iterable[pa.RecordBatch],
        producer: str,
        stamp: float,
        deliveries: list[Delivery],
    ) -> None:
        for rows in batches:
            for part in sliced(rows):
                for step in steps:
                    if isinstance(step, _Door):
                        self.edge_rows[producer, step.target] += part.num_rows
                        step.pass_through(part, producer, stamp, deliveries)
                        continue
                    operator, then = step
                    self.edge_rows[producer, operator.name] += part.num_rows
                    made = self.error_policy.run(operator.name, _on_range(operator.apply, part), part)
                    self._follow(then, made, operator.name, stamp, deliveries)


class _Door:
    """Passes rows through one exit: with the columns and the schema of its stream, hashed and split by executor."""

    def __init__(self, component: str, exit_: Exit, space: KeySpace | None, sink_instance: int):
        self._component = component
        self._exit = exit_
        self.target = exit_.target
        self._space = space
        # The sink, or of the executors the first, which is mostly the only one.
        self._first = ExecutorId(exit_.target, sink_instance if space is None else 0)
        self._stream: pa.Schema | None = None
        self._producer = component
        self._bytes = RowBytes(pa.schema([]))
        # The schema of the last batch, and what it takes to fit such batches to the stream: mostly they are alike.
        self._last: pa.Schema | None = None
        self._columns: list[int] | None = None
        self._keys: list[int] = []
        self._fits = False

    def pass_through(self, rows: pa.RecordBatch, producer: str, stamp: float, deliveries: list[Delivery]) -> None:
        rows = self._fitted(rows, producer)
        if self._space is None:
            deliveries.append(Delivery(self._first, Batch(rows, None, stamp, row_bytes=self._bytes.of(rows))))
            return
        hashes = hash_keys([rows.column(position) for position in self._keys], self._exit.keys)
        for executor, part, part_hashes in split_by_executor(rows, hashes, self._space):
            target = ExecutorId(self._exit.target, executor) if executor else self._first
            batch = Batch(part, part_hashes, stamp, row_bytes=self._bytes.of(part))
            deliveries.append(Delivery(target, batch))

    def _fitted(self, rows: pa.RecordBatch, producer: str) -> pa.RecordBatch:
        schema = rows.schema
        # Metadata is dropped: pandas writes the row count into it, and a channel keeps every schema that it has sent.
        if self._last is None or not schema.equals(self._last, check_metadata=True):
            self._note(rows, producer)
        if self._columns is not None:
            rows = rows.select(self._columns)
        if self._fits:
            return rows
        assert self._stream is not None
        if producer != self._producer:
            _types(self._producer, self._stream).require_same(_types(producer, rows.schema), self._exit.target)
        return check_schema(self._stream, rows, f"the stream from {self._component!r} to {self._exit.target!r}")

    def _note(self, rows: pa.RecordBatch, producer: str) -> None:
        schema, selected = rows.schema, self._exit.select(rows)
        if self._stream is None:
            # Plain values only: every slice of a dictionary column would be sent with the whole dictionary.
            self._stream, self._producer = plain_schema(selected.schema), producer
            self._bytes = RowBytes(self._stream)
            self._keys = [self._stream.get_field_index(key) for key in self._exit.keys]
        self._fits = selected.schema.equals(self._stream, check_metadata=True)
        self._columns = None if selected is rows else [schema.get_field_index(name) for name in selected.schema.names]
        self._last = schema


def _types(producer: str, schema: pa.Schema) -> ColumnTypes:
    return ColumnTypes(producer, {field.name: str(plain_type(field.type)) for field in schema})


_Step = _Door | tuple[Stateless, list["_Step"]]


def sliced(rows: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
    """Cut a batch that is too large into even slices; an empty batch yields none.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The batch.

    Returns
    -------
    sequence of pyarrow.RecordBatch
        Slices of at most `MAX_BATCH_ROWS` rows and about `MAX_BATCH_BYTES` bytes, in order; no row is copied.

    Examples
    --------
    >>> [part.num_rows for part in sliced(pa.record_batch({"x": range(100_000)}))]
    [50000, 50000]
    """
    count = rows.num_rows
    if count == 0:
        return ()
    # The size of all buffers is a bound, above the size of the rows if these are a slice; it is found at once.
    if count <= MAX_BATCH_ROWS and rows.get_total_buffer_size() <= MAX_BATCH_BYTES:
        return (rows,)
    parts = max(-(-count // MAX_BATCH_ROWS), -(-rows.nbytes // MAX_BATCH_BYTES))
    size = -(-count // parts)
    return (rows,) if size >= count else [rows.slice(start, size) for start in range(0, count, size)]


def _on_range(
    apply: Callable[[pa.RecordBatch], list[pa.RecordBatch]], rows: pa.RecordBatch
) -> RunRange[pa.RecordBatch]:
    def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
        whole = start == 0 and stop == rows.num_rows
        return apply(rows if whole else rows.slice(start, stop - start))

    return run
