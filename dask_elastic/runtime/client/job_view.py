"""Views of a job: one line for a terminal, a few for the interpreter."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from dask.utils import format_bytes, format_time

from dask_elastic.runtime.client.checkpoint_text import given_up, newest_checkpoint, restarted
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.reports import ExecutorReport, StalledCall
from dask_elastic.vocab.counted import counted
from dask_elastic.vocab.epoch import HandoffProgress

FEW = 8
"""Up to so many executors of an operator are listed one by one in a line."""

LISTED = 40
"""Up to so many executors have a line of their own; the card of a notebook has all of them."""


def one_line(described: JobDescription) -> str:
    """Return a job in one line: status, rows per second of its sources, latency, cores of each executor, moves."""
    executors, live = described.executors, described.ended is None
    took = (described.ended or time.time()) - described.began
    parts = [f"{described.name}: {described.status.value}", f"{took:.0f} s", counted(described.rows_read, "row")]
    if live:
        parts.append(f"{described.source_rate:,.0f} rows/s")
    half, high = measured_latency(described)
    if half is not None and high is not None:
        parts.append(f"latency {format_time(half)} / {format_time(high)}")
    parts += cores_by_operator(executors)
    parts += [handed_over(one, live) for one in described.handoffs if one.epochs]
    parts.append(counted(sum(e.moves for e in executors), "move"))
    dead = sum(described.dead_letters.values())
    if dead:
        parts.append(counted(dead, "dead letter"))
    if late := sum(part.late for part in described.event_times):
        parts.append(counted(late, "late row"))
    if late := sum(part.windows.late for part in executors if part.windows is not None):
        parts.append(f"{late:,} late for windows")
    return " · ".join(parts + checkpoint_parts(described) + conditions(described))


def checkpoint_parts(described: JobDescription) -> list[str]:
    """Return the newest complete checkpoint and the restarts of a job; nothing for a job without checkpoints."""
    status = described.checkpoints
    return [] if status is None else [text for text in (newest_checkpoint(status), restarted(status)) if text]


def measured_latency(described: JobDescription) -> tuple[float | None, float | None]:
    """Return p50 and p99 of the slowest executor, in seconds; None without a measurement."""
    half = max((e.latency_p50 for e in described.executors if e.latency_p50 is not None), default=None)
    high = max((e.latency_p99 for e in described.executors if e.latency_p99 is not None), default=None)
    return half, high


def stalled_text(call: StalledCall, nodes: Sequence[str]) -> str:
    """Return a call that does not return, in a few words.

    Parameters
    ----------
    call : StalledCall
        The call.
    nodes : sequence of str
        The address of each node of its job.

    Examples
    --------
    >>> call = StalledCall("per_key", "process", 0, 0.0, "elastic-job-per_key[0]-task-0", "logic.py:7 in enrich")
    >>> stalled_text(call, ["tcp://host:1234"])
    'per_key stalled since 1970-01-01T00:00:00Z on tcp://host:1234, at logic.py:7 in enrich'
    """
    since = datetime.fromtimestamp(call.since, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{call.operator} stalled since {since} on {nodes[call.node]}, at {call.frame}"


def cores_by_operator(executors: Sequence[ExecutorReport]) -> list[str]:
    """Return the cores of each operator: one by one for a few executors, else their sum."""
    found = []
    for operator in dict.fromkeys(e.operator for e in executors):
        cores = [e.cores for e in executors if e.operator == operator]
        each = counted(cores[0], "core") if len(cores) == 1 else f"{'+'.join(map(str, cores))} cores"
        total = f"{counted(sum(cores), 'core')} of {counted(len(cores), 'executor')}"
        found.append(f"{operator} {total}" if len(cores) > FEW else f"{operator} {each}")
    return found


def handed_over(progress: HandoffProgress, live: bool = True) -> str:
    """Return how far a handoff is, in a few words.

    Parameters
    ----------
    progress : HandoffProgress
        How far it is.
    live : bool
        Whether the job runs; otherwise rate and queue are left out.

    Examples
    --------
    >>> handed_over(HandoffProgress("rows", 7, 8, 8_000, 1_000.0, 1, 2, 2**20))
    'rows ← epoch 7, 8,000 rows, 1,000 rows/s, 1 of 2 wait, 1.00 MiB staged'
    """
    parts = [f"{progress.source} ← epoch {progress.epoch}", counted(progress.rows, "row")]
    if live:
        parts.append(f"{progress.rows_per_second:,.0f} rows/s")
        parts.append(f"{progress.waiting} of {progress.limit} wait")
        parts.append(f"{format_bytes(progress.staged)} staged")
        parts += [f"{format_bytes(progress.spilled)} on disk"] if progress.spilled else []
    return ", ".join(parts)


def conditions(described: JobDescription) -> list[str]:
    """Return the unusual conditions of a job."""
    control = described.control
    found = ["oversubscribed"] if described.oversubscribed else []
    found += [f"without {' and '.join(described.silent)}: no answer"] if described.silent and described.live else []
    if control.starved:
        found.append(f"starved: lacks {counted(control.starved, 'core')}")
    found += [stalled_text(call, described.nodes) for call in described.stalled[:1]]
    found += [f"and {len(described.stalled) - 1} more stalled"] if len(described.stalled) > 1 else []
    found += [f"{operator} is GIL-bound" for operator in control.bound]
    found += ["dry run"] if described.dry_run else []
    status = described.checkpoints
    found += [given_up(status.given_up)] if status and status.given_up and status.failing else []
    found += [f"control loop: {control.control_error}"] if control.control_error else []
    return found


def state_text(executors: Iterable[ExecutorReport]) -> str:
    """Return the size of the state of executors, and how much of it is on disk."""
    listed = list(executors)
    on_disk = sum(measure.state_on_disk for measure in listed)
    size = format_bytes(sum(measure.state_bytes for measure in listed))
    return f"{size} ({format_bytes(on_disk)} on disk)" if on_disk else size


def summary(described: JobDescription) -> str:
    """Return a job in a few lines."""
    lines = [f"<Job {one_line(described)}>"]
    executors = in_order(described)
    lines += [
        f"  {e.operator}[{e.executor}]: {counted(e.cores, 'core')}, queue {e.queue:,}, state {state_text([e])}"
        for e in executors[:LISTED]
    ]
    lines += [f"  and {len(executors) - LISTED} more: see job.metrics()"] if len(executors) > LISTED else []
    return "\n".join(lines)


def in_order(described: JobDescription) -> list[ExecutorReport]:
    """Return the executors by operator and number."""
    return sorted(described.executors, key=lambda e: (e.operator, e.executor))
