"""Emitter of a component: runs fused stateless operators, then hashes and splits rows for the next receivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy, Errors, RunRange
from dask_elastic.executor.fused.fused_compute import FusedCompute
from dask_elastic.executor.fused.typed_stream import TypedStream
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.split import split_by_executor
from dask_elastic.topology.component import Branch, Exit, edges
from dask_elastic.topology.operators import Compute, Stateless
from dask_elastic.topology.windows.late_rows import LateRows
from dask_elastic.vocab.batch import MAX_BATCH_ROWS, Batch, Delivery
from dask_elastic.vocab.identity import ExecutorId

CurrentTable = Callable[[str], GroupTable | None]
"""Returns the current table of an operator whose key groups move between executors; None for others."""

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
    fused : mapping of str to FusedCompute, optional
        The computes that run behind the component's first one, by name.
    tables : callable, optional
        Returns the current table of an operator whose key groups move between executors, None for others; without it
        those of no operator move.

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
        fused: Mapping[str, FusedCompute] | None = None,
        tables: CurrentTable | None = None,
    ):
        self._tables = tables
        self._fused = fused or {}
        self.component = component
        self.error_policy = error_policy
        self._spaces = spaces
        self._sink_instance = sink_instance
        self._doors: dict[Exit, _Door] = {}
        # What reads the results of each fused compute, and what reads the rows that came too late for its windows.
        self._behind: dict[str, _Readers] = {}
        self.edge_rows = dict.fromkeys(edges(component, outputs), 0)
        self._steps, self._late = _Readers.among(self._steps_of(outputs))

    def _steps_of(self, outputs: tuple[Branch | Exit, ...]) -> list[_Step]:
        return [self._door(o) if isinstance(o, Exit) else self._branch(o) for o in outputs]

    def _branch(self, branch: Branch) -> _Step:
        operator, then = branch.operator, self._steps_of(branch.then)
        if isinstance(operator, Compute):
            self._behind[operator.name] = _Readers.among(then)
        return (self._fused[operator.name] if isinstance(operator, Compute) else operator), then

    def _door(self, exit_: Exit) -> _Door:
        # Equal exits share a door, and so the schema of their stream.
        if exit_ not in self._doors:
            space = self._spaces[exit_.target] if exit_.keys else None
            self._doors[exit_] = _Door(self.component, exit_, space, self._sink_instance, self._tables)
        return self._doors[exit_]

    @property
    def has_outputs(self) -> bool:
        """Whether any operator or sink reads the component's outputs, apart from late rows."""
        return bool(self._steps)

    def emit(
        self, batches: Iterable[pa.RecordBatch], stamp: float, late: Sequence[pa.RecordBatch] = ()
    ) -> list[Delivery]:
        """Route output batches of the component's operator.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch
            Output, in order.
        stamp : float
            When the oldest input row of the outputs was due to leave its source.
        late : sequence of pyarrow.RecordBatch
            Input rows that came too late for the operator's windows, for those consumers that read only these.

        Returns
        -------
        list of Delivery
            In order; rows for one executor keep their order.
        """
        deliveries: list[Delivery] = []
        self._follow(self._steps, batches, self.component, stamp, deliveries)
        if late:
            self._follow(self._late, late, self.component, stamp, deliveries)
        return deliveries

    def fire(self, batches: Iterable[pa.RecordBatch], batch: Batch) -> list[Delivery]:
        """Route what a state record has made the component's operator emit; the fused computes fire behind it.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch
            Output, in order.
        batch : Batch
            The record.

        Returns
        -------
        list of Delivery
            In order; rows for one executor keep their order.
        """
        deliveries: list[Delivery] = []
        self._follow(self._steps, batches, self.component, batch.stamp, deliveries)
        # Rows of each compute reach only later ones.
        for name, fused in self._fused.items():
            self._follow(self._behind[name].results, fused.fire(batch), name, batch.stamp, deliveries)
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
                    if isinstance(operator, FusedCompute):
                        made = operator.process(part, producer)
                        then, late = self._behind[operator.name]
                        if late:
                            self._follow(late, operator.take_late(), operator.name, stamp, deliveries)
                    else:
                        made = self.error_policy.run(operator.name, _on_range(operator.apply, part), part)
                    self._follow(then, made, operator.name, stamp, deliveries)


class _Door:
    """Passes rows through one exit: with the columns and the schema of its stream, hashed and split by executor."""

    def __init__(
        self, component: str, exit_: Exit, space: KeySpace | None, sink_instance: int, tables: CurrentTable | None
    ):
        self._tables = tables
        self._exit = exit_
        self.target = exit_.target
        self._space = space
        # The sink, or of the executors the first, which is mostly the only one.
        self._first = ExecutorId(exit_.target, sink_instance if space is None else 0)
        self._stream = TypedStream(component, exit_)

    def pass_through(self, rows: pa.RecordBatch, producer: str, stamp: float, deliveries: list[Delivery]) -> None:
        stream = self._stream
        rows = stream.fitted(rows, producer)
        if self._space is None:
            deliveries.append(Delivery(self._first, Batch(rows, None, stamp, row_bytes=stream.row_bytes.of(rows))))
            return
        hashes = stream.hashes(rows, self._space)
        table, version = None if self._tables is None else self._tables(self.target), 0
        if table is None:
            parts = split_by_executor(rows, hashes, self._space)
        else:
            parts, version = table.split(rows, hashes, self._space.shard_of(hashes)), table.version
        for executor, part, part_hashes in parts:
            target = ExecutorId(self._exit.target, executor) if executor else self._first
            batch = Batch(part, part_hashes, stamp, row_bytes=stream.row_bytes.of(part), version=version)
            deliveries.append(Delivery(target, batch))


_Step = _Door | tuple[Stateless | FusedCompute, list["_Step"]]


class _Readers(NamedTuple):
    """What follows a compute: readers of its results, and of the rows that came too late for its windows."""

    results: list[_Step]
    late: list[_Step]

    @classmethod
    def among(cls, steps: list[_Step]) -> _Readers:
        late: list[_Step] = [step for step in steps if not isinstance(step, _Door) and isinstance(step[0], LateRows)]
        return cls([step for step in steps if step not in late], late)


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
