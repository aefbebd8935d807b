"""What the old home of an executor hands over to the new one, as a message: state as Arrow IPC streams."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.sharing import Sharing
from dask_elastic.executor.control_records.watermarks import Standing
from dask_elastic.executor.homes.handover import Handover
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.home_calls import CreditInUse, InputStanding, InstallHome, WatermarkStanding
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
) -> InstallHome:
    """Return the call that hands an executor over; the other arguments are as `InstallHome` describes them."""
    now, emitted, last = handover.watermarks
    return InstallHome(
        *generation,
        *executor,
        state=_streams(handover.state),
        input_schema=None if handover.input_schema is None else handover.input_schema.serialize().to_pybytes(),
        event_time=handover.event_time,
        counts=handover.counts,
        inputs=tuple(InputStanding(*standing) for standing in handover.inputs.standing()),
        inputs_time=handover.inputs.time,
        watermarks=tuple(WatermarkStanding(*standing) for standing in (now, emitted, last)),
        sharing=handover.sharing.standing(),
        clocks=handover.clocks,
        taken=handover.taken,
        incarnations=dict(handover.incarnations),
        cores=dict(handover.cores),
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
        state=_rows(call.state),
        changes=None,
        input_schema=None if call.input_schema is None else pa.ipc.read_schema(pa.py_buffer(call.input_schema)),
        event_time=call.event_time,
        counts=call.counts,
        inputs=Inputs.of(executor, call.inputs, call.inputs_time),
        watermarks=(now, emitted, last),
        sharing=Sharing.of(*call.sharing),
        clocks=call.clocks,
        taken=call.taken,
        incarnations=call.incarnations,
        flushes=(),
        cores=call.cores,
        rows=call.rows,
    )


def state_bytes(call: InstallHome) -> int:
    """Return the bytes of state in a call."""
    return sum(len(memoryview(part)) for part in call.state)


def _streams(rows: pa.RecordBatch | None) -> tuple[Payload, ...]:
    if rows is None:
        return ()
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        # As one batch, also without rows.
        writer.write_batch(rows)
    return (memoryview(out.getvalue()),)


def _rows(streams: tuple[Payload, ...]) -> pa.RecordBatch | None:
    if not streams:
        return None
    with pa.ipc.open_stream(pa.py_buffer(streams[0])) as reader:
        return reader.read_next_batch()
