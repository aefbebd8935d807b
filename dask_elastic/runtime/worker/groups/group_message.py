"""Key groups on their way to an executor of another node, as a message: their state as an Arrow IPC stream."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.runtime.protocol.group_calls import InstallGroups
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.worker.homes.handover_message import rows_of, stream_of
from dask_elastic.vocab.identity import ExecutorId


def message_of(generation: JobGeneration, executor: ExecutorId, handed: HandedGroups) -> InstallGroups:
    """Return the call that gives groups to an executor."""
    schema = handed.input_schema
    return InstallGroups(
        *generation,
        executor.component,
        handed.version,
        executor.index,
        handed.groups,
        () if handed.state is None else (stream_of(handed.state),),
        None if schema is None else schema.serialize().to_pybytes(),
        handed.event_time,
        handed.taken,
    )


def handed_of(call: InstallGroups) -> HandedGroups:
    """Return the groups that an executor gives; the inverse of `message_of`."""
    state = [rows_of(stream) for stream in call.state]
    schema = None if call.input_schema is None else pa.ipc.read_schema(pa.py_buffer(call.input_schema))
    return HandedGroups(
        call.version, tuple(call.groups), state[0] if state else None, schema, call.event_time, call.taken, across=True
    )
