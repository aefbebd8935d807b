"""Rows with due times from a process of its own, through a pipe: what `job.send` is for the engine."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pyarrow as pa
from _due_rows import SCHEMA, due_batches


def _send(pipe: Connection, rate: float, seconds: float, began: float) -> None:
    for due, rows in due_batches(rate, seconds, began):
        if (early := due - time.time()) > 0:
            time.sleep(early)
        pipe.send_bytes(rows.serialize())
    pipe.send_bytes(b"")


@contextmanager
def sent_batches(rate: float, seconds: float, began: float) -> Iterator[Connection]:
    """Have a process send each batch when it is due; yields the end of the pipe to `take` them from."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, rate, seconds, began))
    process.start()
    sending.close()
    try:
        yield receiving
        process.join()
    finally:
        process.terminate()
        receiving.close()


def take(pipe: Connection) -> pa.RecordBatch | None:
    """Wait for the next batch; None at the end."""
    packet = pipe.recv_bytes()
    return pa.ipc.read_record_batch(packet, SCHEMA) if packet else None
