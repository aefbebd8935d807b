"""The streams of `thin.py` in Bytewax; importing this module needs Bytewax, the extra `benchmarks`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from _bare_streams import SENDER_SECONDS, START_SECONDS
from _cpu import OwnCpu
from _due_rows import WARM_SECONDS, BareCounts, Received, due_batches, forget_received, receive_due, received
from _own_logic import LEVELS, STATE, fold, slices
from _pipe import sent_batches, take
from bytewax import operators
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

Item = tuple[str, Any]


class _DuePartition(StatelessSourcePartition[Item]):
    """Emits the items of each batch when it is due."""

    def __init__(
        self,
        batches: Iterator[tuple[float, pa.RecordBatch]],
        items_of: Callable[[pa.RecordBatch], list[Item]],
        counted_from: float,
        cpu: OwnCpu,
    ):
        self._batches = batches
        self._items_of = items_of
        self._counted_from = counted_from
        self._cpu = cpu
        self._next = next(batches, None)

    def next_batch(self) -> list[Item]:
        items: list[Item] = []
        if self._next is None:
            raise StopIteration
        now = time.time()
        while self._next is not None and self._next[0] <= now:
            due, rows = self._next
            if due >= self._counted_from:
                self._cpu.begin()
            items += self._items_of(rows)
            self._next = next(self._batches, None)
        return items

    def next_awake(self) -> datetime | None:
        return None if self._next is None else datetime.fromtimestamp(self._next[0], UTC)


class _SentPartition(StatelessSourcePartition[Item]):
    """Emits the batches that have arrived; Bytewax looks every millisecond."""

    def __init__(self, pipe: Connection, counted_from: float, cpu: OwnCpu):
        self._pipe = pipe
        self._counted_from = counted_from
        self._cpu = cpu
        self._has_ended = False

    def next_batch(self) -> list[Item]:
        items: list[Item] = []
        if self._has_ended:
            raise StopIteration
        if time.time() >= self._counted_from:
            self._cpu.begin()
        while self._pipe.poll(0):
            if (rows := take(self._pipe)) is None:
                self._has_ended = True
                break
            items.append(("all", rows))
        return items


class _Source(DynamicSource[Item]):
    def __init__(self, partition: Callable[..., StatelessSourcePartition[Item]], *options: Any):
        self._partition = partition
        self._options = options

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSourcePartition[Item]:
        return self._partition(*self._options)


class _FunctionPartition(StatelessSinkPartition[Item]):
    def __init__(self, write: Callable[[list[Item]], None]):
        self._write = write

    def write_batch(self, items: list[Item]) -> None:
        self._write(items)


class _FunctionSink(DynamicSink[Item]):
    """Calls a function with the items of each batch."""

    def __init__(self, write: Callable[[list[Item]], None]):
        self._write = write

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _FunctionPartition:
        return _FunctionPartition(self._write)


def _receive_items(items: list[Item]) -> None:
    for _, due in items:
        receive_due(due)


def bytewax_count(rate: float, seconds: float) -> tuple[Received, float]:
    """Count the rows of the stream with due times by key; returns what was received, and the cores.

    An item is a whole batch, and all items have one key: Bytewax has no state per key within a batch.
    """
    began, cpu = time.time() + START_SECONDS, OwnCpu()
    batches = due_batches(rate, seconds, began)
    return _counted(_Source(_DuePartition, batches, lambda rows: [("all", rows)], began + WARM_SECONDS, cpu), cpu)


def bytewax_sent(rate: float, seconds: float) -> tuple[Received, float]:
    """Count as `bytewax_count` does what another process sends."""
    began, cpu = time.time() + SENDER_SECONDS, OwnCpu()
    with sent_batches(rate, seconds, began) as pipe:
        return _counted(_Source(_SentPartition, pipe, began + WARM_SECONDS, cpu), cpu)


def _counted(source: _Source, cpu: OwnCpu) -> tuple[Received, float]:
    forget_received()

    def count(state: BareCounts | None, rows: pa.RecordBatch) -> tuple[BareCounts, Any]:
        state = state or BareCounts()
        return state, state.update(rows)

    flow = Dataflow("count")
    counted = operators.stateful_map("count", operators.input("rows", flow, source), count)
    operators.output("sink", counted, _FunctionSink(_receive_items))
    run_main(flow)
    return received(), cpu.cores()


def bytewax_logic(rate: float, seconds: float, folder: Path) -> float:
    """Run the three computes of own logic, row by row; returns the cores. An item is a row."""
    began, cpu = time.time() + START_SECONDS, OwnCpu()

    def rows_of(rows: pa.RecordBatch) -> list[Item]:
        keys, seq, val = (rows[name].to_pylist() for name in ("key", "seq", "val"))
        return list(zip(map(str, keys), zip(seq, val, strict=True), strict=True))

    def update(state: dict[str, Any] | None, row: tuple[int, int]) -> tuple[dict[str, Any], int]:
        state = state or dict.fromkeys(STATE)
        return state, fold(state, *row)

    def appender(file: Path) -> Callable[[list[Item]], None]:
        def append(items: list[Item]) -> None:
            with file.open("ab") as opened:
                opened.write("".join(key for key, _ in items).encode())

        return append

    flow = Dataflow("logic")
    source = _Source(_DuePartition, slices(rate, seconds, began), rows_of, began + WARM_SECONDS, cpu)
    rows = operators.input("rows", flow, source)
    for level in LEVELS:
        folded = operators.stateful_map(f"per_{level}", rows, update)
        operators.output(f"{level}_file", folded, _FunctionSink(appender(folder / level)))
    run_main(flow)
    return cpu.cores()
