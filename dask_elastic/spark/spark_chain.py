"""PMC on Spark: Spark's Python workers keep the decisions of blocks of partitionings, and iterate over their costs.

Notes
-----
State migration (Ding et al.), section 5.2, Figures 9 and 14. Each round broadcasts the costs of all partitionings; each
block answers with its own, one migration earlier. The arithmetic of a block is that of the local computation, so the
results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from dask_elastic.planning.checked_arrays import Floats
from dask_elastic.planning.intervals.decisions import Decisions, Policy, Space
from dask_elastic.planning.intervals.projected_costs import ProjectedCosts
from dask_elastic.planning.intervals.value_iteration import Progress, Projection

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]

PARTS_PER_CORE = 3
"""Partitions of Spark for each of its cores: enough for balance."""

BLOCKS_PER_PART = 64
"""The most blocks of a partition, which a Python worker may have to hold at once; each takes a few megabytes."""

LOOK_SECONDS = 0.1
"""Time between two looks at the progress."""

_DECISIONS = "begin bigint, states int, cost binary, target binary, first binary, source binary, share binary"
_RENEWED = "begin bigint, renewed binary, source binary, share binary, target binary"


def projected_costs(
    spark: SparkSession,
    load: ArrayLike,
    state_bytes: ArrayLike,
    matrix: Mapping[int, Mapping[int, float]],
    tau: float,
    discount: float,
    allow_empty: bool = False,
    tolerance: float = 1e-6,
    progress: Progress | None = None,
    path: str | Path | None = None,
) -> ProjectedCosts:
    """Compute the projected cost of each partitioning with all cores of Spark.

    Parameters
    ----------
    spark : SparkSession
        The session. Its Python workers need this package.
    load, state_bytes, matrix, tau, discount, allow_empty, tolerance
        As for `dask_elastic.planning.intervals.transition.projected_costs`.
    progress : callable, optional
        Called with the number of partitionings whose migrations are known, and of all.
    path : str or Path, optional
        A Parquet file to which the table is saved; `ProjectedCosts.load` reads it.

    Returns
    -------
    ProjectedCosts
        The cost of every partitioning within the limit, for all numbers of nodes in the matrix.

    Raises
    ------
    PlanningError
        If an argument is out of range, a row of the matrix does not sum to one, or there are too many partitionings.
    Infeasible
        If a number of nodes has no partitioning within the limit; names the task and the limit.

    Notes
    -----
    State migration, Figure 9, with errata 4 and 6.

    Examples
    --------
    ::

        spark = dask_elastic.spark.session("plans")
        costs = dask_elastic.spark.projected_costs(
            spark, load, state_bytes, matrix, tau=0.2, discount=0.8, path="costs.parquet"
        )
    """
    projection = Projection.of(load, state_bytes, matrix, tau, discount, allow_empty, tolerance)
    with _SparkChain(spark, projection.space) as chain:
        chain.build(progress)
        found = projection.solved(chain)
    if path is not None:
        found.save(path)
    return found


class _SparkChain:
    """The decisions of all blocks, in Spark's memory and on its disks; freed at the end of a `with` block."""

    def __init__(self, spark: SparkSession, space: Space):
        self.states = space.states
        self._spark = spark
        context = spark.sparkContext
        self._space = context.broadcast(space)
        self._done = context.accumulator(0)
        blocks = len(space.blocks)
        parts = min(blocks, max(PARTS_PER_CORE * context.defaultParallelism, -(-blocks // BLOCKS_PER_PART)))
        numbers = spark.range(0, blocks, 1, parts)
        self._decisions = numbers.mapInArrow(_building(self._space, self._done), _DECISIONS)

    def __enter__(self) -> _SparkChain:
        self._decisions.persist()
        return self

    def __exit__(self, *_: object) -> None:
        self._decisions.unpersist()
        self._space.destroy()

    def build(self, progress: Progress | None) -> None:
        """Compute the decisions of all blocks."""
        with ThreadPoolExecutor(1) as thread:
            building = thread.submit(self._decisions.count)
            last = 0
            while not wait([building], LOOK_SECONDS).done:
                # A task that Spark repeats counts twice.
                done = min(self._done.value, self.states)
                if progress is not None and last < done < self.states:
                    progress(done, self.states)
                    last = done
            building.result()
        if progress is not None:
            progress(self.states, self.states)

    def renewed(self, values: Floats, discount: float) -> Floats:
        """Return the cost of each partitioning one migration before `values`."""
        return self._round(values, discount, policy=False)[0]

    def chosen(self, values: NDArray[Any], discount: float) -> tuple[NDArray[Any], Policy]:
        """Return the same in the precision of `values`, and the decisions that lead there."""
        renewed, rows = self._round(values, discount, policy=True)
        source, target = (_joined(rows, name, np.int64) for name in ("source", "target"))
        return renewed, Policy(source, _joined(rows, "share", np.float64), target)

    def _round(self, values: NDArray[Any], discount: float, policy: bool) -> tuple[NDArray[Any], list[Any]]:
        broadcast = self._spark.sparkContext.broadcast(values)
        try:
            step = _renewing(broadcast, discount, policy)
            rows = sorted(self._decisions.mapInArrow(step, _RENEWED).collect(), key=lambda row: row["begin"])
        finally:
            broadcast.destroy()
        return _joined(rows, "renewed", values.dtype), rows


@dataclass(frozen=True)
class _Block:
    """The decisions of one block, as a row of Spark: numbers as bytes, so that no value is converted."""

    begin: int
    states: int
    decisions: Decisions

    def row(self) -> dict[str, Any]:
        return {"begin": self.begin, "states": self.states} | {
            name: getattr(self.decisions, name).tobytes() for name in ("cost", "target", "first", "source", "share")
        }

    @classmethod
    def of(cls, row: dict[str, Any]) -> _Block:
        cost, share = (np.frombuffer(row[name], np.float64) for name in ("cost", "share"))
        target, first, source = (np.frombuffer(row[name], np.int64) for name in ("target", "first", "source"))
        return cls(row["begin"], row["states"], Decisions(cost, target, first, source, share))


def _building(space: Broadcast[Space], done: Accumulator[int]) -> Callable[[Batches], Batches]:
    """Return the function that computes the decisions of blocks, one row each."""

    def build(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch["id"].to_pylist():
                _, _, first, last, begin = space.value.blocks[number].tolist()
                block = _Block(begin, last - first, space.value.decisions(number))
                done.add(last - first)
                yield _row(block.row(), {"states": pa.int32()})

    return build


def _renewing(values: Broadcast[NDArray[Any]], discount: float, policy: bool) -> Callable[[Batches], Batches]:
    """Return the function that renews the costs of the partitionings of blocks."""

    def renew(batches: Batches) -> Batches:
        for batch in batches:
            for row in batch.to_pylist():
                block = _Block.of(row)
                answer = {"begin": block.begin, "source": b"", "share": b"", "target": b""}
                if policy:
                    renewed, best = block.decisions.chosen(values.value, discount, block.begin, block.states)
                    answer |= {name: getattr(best, name).tobytes() for name in ("source", "share", "target")}
                else:
                    renewed = block.decisions.renewed(values.value, discount, block.begin, block.states)
                yield _row({**answer, "renewed": renewed.tobytes()}, {}, _RENEWED)

    return renew


def _joined(rows: list[Any], name: str, dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.frombuffer(row[name], dtype) for row in rows])


def _row(values: dict[str, Any], types: dict[str, pa.DataType], order: str = _DECISIONS) -> pa.RecordBatch:
    names = [column.split()[0] for column in order.split(", ")]
    return pa.record_batch({name: pa.array([values[name]], types.get(name)) for name in names})
