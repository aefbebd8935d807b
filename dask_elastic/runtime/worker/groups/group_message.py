"""Key groups on their way to an executor of another node, and what is copied before, as messages."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.runtime.protocol.group_calls import InstallCopied, InstallGroups
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.worker.homes.handover_message import copied_rows, sent_rows
from dask_elastic.vocab.identity import ExecutorId


def copied_message(generation: JobGeneration, executor: ExecutorId, copied: CopiedGroups) -> InstallCopied:
    """Return the call that brings a portion of state to an executor."""
    operator, index = executor
    rows = sent_rows(copied.rows)
    return InstallCopied(
        *generation, operator, copied.version, index, copied.source, copied.groups, copied.position, rows
    )


def copied_of(call: InstallCopied) -> CopiedGroups:
    """Return a portion of state; the inverse of `copied_message`."""
    return CopiedGroups(call.version, call.source, tuple(call.groups), call.position, copied_rows(call.rows))


def message_of(generation: JobGeneration, executor: ExecutorId, handed: HandedGroups) -> InstallGroups:
    """Return the call that gives groups to an executor."""
    return InstallGroups(
        *generation,
        executor.component,
        handed.version,
        executor.index,
        handed.source,
        handed.groups,
        handed.portions,
        sent_rows(handed.rest),
        {name: None if schema is None else schema.serialize().to_pybytes() for name, schema in handed.schemas.items()},
        handed.event_time,
        handed.taken,
    )


def handed_of(call: InstallGroups) -> HandedGroups:
    """Return the groups that an executor gives; the inverse of `message_of`."""
    schemas = {
        name: None if schema is None else pa.ipc.read_schema(pa.py_buffer(schema))
        for name, schema in call.schemas.items()
    }
    return HandedGroups(
        call.version,
        call.source,
        tuple(call.groups),
        call.portions,
        copied_rows(call.rest),
        schemas,
        call.event_time,
        call.taken,
        across=True,
    )
