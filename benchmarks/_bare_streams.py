"""The streams of `thin.py` without an engine: one thread hands each batch to another when it is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
from _cpu import OwnCpu
from _due_rows import WARM_SECONDS, BareCounts, Received, due_batches, forget_received, receive_due, received
from _own_logic import LEVELS, STATE, append_keys, fold, slices
from _pipe import sent_batches, take

START_SECONDS = 0.1
"""Seconds until the first batch is due."""

SENDER_SECONDS = 3.0
"""The same where another process sends the batches, which imports Arrow first."""


def hand_over(
    batches: Iterable[tuple[float, pa.RecordBatch]], consume: Callable[[pa.RecordBatch], None], counted_from: float
) -> float:
    """Put each batch into a queue when it is due; another thread consumes it. Returns the cores of both."""
    queue: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()

    def run() -> None:
        while (rows := queue.get()) is not None:
            consume(rows)

    thread = threading.Thread(target=run)
    thread.start()
    cpu = OwnCpu()
    for due, rows in batches:
        if due >= counted_from:
            cpu.begin()
        if (early := due - time.time()) > 0:
            time.sleep(early)
        queue.put(rows)
    queue.put(None)
    thread.join()
    return cpu.cores()


def bare_count(rate: float, seconds: float) -> tuple[Received, float]:
    """Count the rows of the stream with due times by key; returns what was received, and the cores."""
    forget_received()
    counts = BareCounts()
    began = time.time() + START_SECONDS
    cores = hand_over(
        due_batches(rate, seconds, began), lambda rows: receive_due(counts.update(rows)), began + WARM_SECONDS
    )
    return received(), cores


def bare_sent(rate: float, seconds: float) -> tuple[Received, float]:
    """Count as `bare_count` does what another process sends; one thread takes it from the pipe."""
    forget_received()
    counts, cpu = BareCounts(), OwnCpu()
    began = time.time() + SENDER_SECONDS
    with sent_batches(rate, seconds, began) as pipe:
        while (rows := take(pipe)) is not None:
            if time.time() >= began + WARM_SECONDS:
                cpu.begin()
            receive_due(counts.update(rows))
    return received(), cpu.cores()


class BareLogic:
    """The three computes of own logic, row by row in plain dictionaries, and their files."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._states: dict[str, dict[int, dict[str, Any]]] = {level: {} for level in LEVELS}
        for level in LEVELS:
            (folder / level).mkdir()

    def update(self, rows: pa.RecordBatch) -> None:
        """Fold a batch, and append its keys to the files."""
        columns = [rows[name].to_pylist() for name in ("key", "seq", "val")]
        for level, states in self._states.items():
            for key, seq, val in zip(*columns, strict=True):
                fold(states.setdefault(key, dict.fromkeys(STATE)), seq, val)
            append_keys(self._folder / level, rows)


def bare_logic(rate: float, seconds: float, folder: Path) -> float:
    """Run the three computes; returns the cores."""
    began = time.time() + START_SECONDS
    return hand_over(slices(rate, seconds, began), BareLogic(folder).update, began + WARM_SECONDS)
