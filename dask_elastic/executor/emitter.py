"""Emitter of a component: runs fused stateless operators, then hashes and splits rows for the next receivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.split import split_by_executor
from dask_elastic.topology.component import Branch, Exit
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.vocab.batch import MAX_BATCH_ROWS, Batch, Delivery
from dask_elastic.vocab.identity import ExecutorId

MAX_BATCH_BYTES = 16 * 2**20
"""Larger batches are sliced, so that credit and memory stay fine-grained."""


class Emitter:
    """Routes the outputs of one thread of a component; not shared between threads.

    Parameters
    ----------
    component : str
        Name of the component, for error messages.
    outputs : tuple of Branch or Exit
        What follows the component's operator.
    spaces : mapping of str to KeySpace
        Key space of each stateful component.
    error_policy : ErrorPolicy
        Runs the user code of stateless operators.
    sink_instance : int
        The instance of each sink that gets the rows: the one at the executor's home.
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
        self.outputs = outputs
        self.spaces = spaces
        self.error_policy = error_policy
        self.sink_instance = sink_instance
        self._schemas: dict[Exit, pa.Schema] = {}

    @property
    def has_outputs(self) -> bool:
        """Whether any operator or sink reads the component's outputs."""
        return bool(self.outputs)

    def emit(self, batches: Iterable[pa.RecordBatch], stamp: float) -> list[Delivery]:
        """Route output batches of the component's operator.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch
            Output, in order.
        stamp : float
            When the oldest input row of the outputs was due to leave its source.

        Returns
        -------
        list of Delivery
            In order; rows for one executor keep their order.
        """
        deliveries: list[Delivery] = []
        for rows in batches:
            for part in sliced(rows):
                self._follow(self.outputs, part, stamp, deliveries)
        return deliveries

    def _follow(
        self, outputs: tuple[Branch | Exit, ...], rows: pa.RecordBatch, stamp: float, deliveries: list[Delivery]
    ) -> None:
        for output in outputs:
            if isinstance(output, Exit):
                self._leave(output, rows, stamp, deliveries)
                continue
            operator = output.operator
            for made in self.error_policy.run(operator.name, _on_range(operator.apply, rows), rows):
                for part in sliced(made):
                    self._follow(output.then, part, stamp, deliveries)

    def _leave(self, exit_: Exit, rows: pa.RecordBatch, stamp: float, deliveries: list[Delivery]) -> None:
        rows = self._checked(exit_, exit_.select(rows))
        if not exit_.keys:
            target = ExecutorId(exit_.target, self.sink_instance)
            deliveries.append(Delivery(target, Batch(rows, None, stamp)))
            return
        hashes = hash_columns(rows, exit_.keys)
        for executor, part, part_hashes in split_by_executor(rows, hashes, self.spaces[exit_.target]):
            deliveries.append(Delivery(ExecutorId(exit_.target, executor), Batch(part, part_hashes, stamp)))

    def _checked(self, exit_: Exit, rows: pa.RecordBatch) -> pa.RecordBatch:
        expected = self._schemas.get(exit_)
        if expected is None:
            # Plain values only: every slice of a dictionary column would be sent with the whole dictionary.
            expected = self._schemas[exit_] = plain_schema(rows.schema)
        # Metadata is dropped: pandas writes the row count into it, and a channel keeps every schema that it has sent.
        if rows.schema.equals(expected, check_metadata=True):
            return rows
        return check_schema(expected, rows, f"the stream from {self.component!r} to {exit_.target!r}")


def sliced(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch that is too large into even slices; an empty batch yields none.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The batch.

    Yields
    ------
    pyarrow.RecordBatch
        Slices of at most `MAX_BATCH_ROWS` rows and about `MAX_BATCH_BYTES` bytes, in order; no row is copied.

    Examples
    --------
    >>> [part.num_rows for part in sliced(pa.record_batch({"x": range(100_000)}))]
    [50000, 50000]
    """
    if rows.num_rows == 0:
        return
    parts = max(-(-rows.num_rows // MAX_BATCH_ROWS), -(-rows.nbytes // MAX_BATCH_BYTES))
    size = -(-rows.num_rows // parts)
    if size >= rows.num_rows:
        yield rows
        return
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _on_range(
    apply: Callable[[pa.RecordBatch], list[pa.RecordBatch]], rows: pa.RecordBatch
) -> Callable[[int, int], list[pa.RecordBatch]]:
    def run(start: int, stop: int) -> list[pa.RecordBatch]:
        whole = start == 0 and stop == rows.num_rows
        return apply(rows if whole else rows.slice(start, stop - start))

    return run
