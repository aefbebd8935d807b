"""What an executor asks its driver to do; a driver carries the instructions out in order.

Notes
-----
The order counts between threads, too: a driver that calls the executor from several of them must carry out what one
call returned, `Wake` and `Release` excepted, before it carries out what a later call returned. Otherwise a shard may
reach a node before the task that it is for.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ALL_SHARDS


@dataclass(frozen=True, slots=True)
class Wake:
    """A task that found nothing to do has something to do."""

    task: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give credit back to an upstream instance."""

    origin: ExecutorId
    nbytes: int


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task on a core of a node; it owns `shards` from the beginning."""

    task: int
    node: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InstallState:
    """Send a shard's primary copy (or, without `copy`, the mere ownership) to the node of `task`, then say so."""

    shard: int
    task: int
    node: int
    copy: bool


@dataclass(frozen=True, slots=True)
class RequestFlush:
    """Ask a remote task for its dirty state, or for that of one `shard`."""

    task: int
    node: int
    token: int
    shard: int = ALL_SHARDS


@dataclass(frozen=True, slots=True)
class Finished:
    """All inputs have ended and everything they brought is processed, emitted, and in the primary copy."""


@dataclass(frozen=True, slots=True)
class EmitWatermark:
    """There is a watermark to pass on: `Watermarks.take` it and send it, one after the other."""


@dataclass(frozen=True, slots=True)
class FlushComplete:
    """Every remote task has answered the flush request `token`."""

    token: int


Instruction = Wake | Release | StartTask | InstallState | RequestFlush | FlushComplete | EmitWatermark | Finished
