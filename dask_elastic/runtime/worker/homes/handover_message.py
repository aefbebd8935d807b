"""What the old home of an executor hands over to the new one, as a message: state as Arrow IPC streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.sharing import Sharing
from dask_elastic.executor.control_records.watermarks import Standing
from dask_elastic.executor.homes.handover import Handover
from dask_elastic.executor.homes.outgoing_copy import CopiedRows
from dask_elastic.runtime.protocol.home_calls import (
    CreditInUse,
    InputStanding,
    InstallHome,
    StateRowsSent,
    WatermarkStanding,
)
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId


def message_of(
    generation: JobGeneration,
    executor: ExecutorId,
    handover: Handover,
    over: int,
    newest_change: int,
    credit: tuple[CreditInUse, ...],
    chains: Mapping[str, Chain | None],
    cores: int,
) -> InstallHome:
    """Return the call that hands an executor over; the other arguments are as `InstallHome` describes them."""
    now, emitted, last = handover.watermarks
    return InstallHome(
        *generation,
        *executor,
        copy=handover.copy,
        portions=handover.portions,
        rest=sent_rows(handover.rest),
        schemas={
            name: None if schema is None else schema.serialize().to_pybytes()
            for name, schema in handover.schemas.items()
        },
        chains=dict(chains),
        event_time=handover.event_time,
        counts=handover.counts,
        inputs=tuple(InputStanding(*standing) for standing in handover.inputs.standing()),
        inputs_time=handover.inputs.time,
        watermarks=tuple(WatermarkStanding(*standing) for standing in (now, emitted, last)),
        sharing=handover.sharing.standing(),
        clocks=handover.clocks,
        taken=handover.taken,
        incarnations=dict(handover.incarnations),
        cores=cores,
        rows=handover.rows,
        over=over,
        newest_change=newest_change,
        credit=credit,
    )


def handover_of(call: InstallHome) -> Handover:
    """Return what an executor's home before has handed over.

    Raises
    ------
    ProtocolError
        If the call cannot be read.
    """
    executor = ExecutorId(call.operator, call.executor)
    if len(call.watermarks) != 3:
        raise ProtocolError(f"{executor} is handed over with {len(call.watermarks)} standings of watermarks, not 3")
    now, emitted, last = (Standing(*standing) for standing in call.watermarks)
    return Handover(
        copy=call.copy,
        portions=call.portions,
        rest=copied_rows(call.rest),
        schemas={
            name: None if schema is None else pa.ipc.read_schema(pa.py_buffer(schema))
            for name, schema in call.schemas.items()
        },
        event_time=call.event_time,
        counts=call.counts,
        inputs=Inputs.of(executor, call.inputs, call.inputs_time),
        watermarks=(now, emitted, last),
        sharing=Sharing.of(*call.sharing),
        clocks=call.clocks,
        taken=call.taken,
        incarnations=call.incarnations,
        flushes=(),
        rows=call.rows,
    )


def sent_rows(portion: Iterable[CopiedRows]) -> tuple[StateRowsSent, ...]:
    """Return a portion of state as it is sent."""
    return tuple(StateRowsSent(part.operator, part.changed, stream_of(part.rows)) for part in portion)


def copied_rows(portion: Iterable[StateRowsSent]) -> tuple[CopiedRows, ...]:
    """Return a portion of state as it was before it was sent."""
    return tuple(CopiedRows(part.operator, part.changed, rows_of(part.rows)) for part in portion)


def stream_of(rows: pa.RecordBatch) -> memoryview:
    """Return a batch as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        # As one batch, also without rows.
        writer.write_batch(rows)
    return memoryview(out.getvalue())


def rows_of(stream: memoryview) -> pa.RecordBatch:
    """Return the inverse of `stream_of`."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_next_batch()
