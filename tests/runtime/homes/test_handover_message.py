"""What an old home hands over arrives at the new one as it was."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.sharing import Sharing
from dask_elastic.executor.control_records.watermarks import Standing
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.homes.handover import Handover
from dask_elastic.executor.homes.incoming_copy import IncomingCopy
from dask_elastic.executor.homes.outgoing_copy import CopiedRows, OutgoingCopy
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.protocol.calls import message_of as arguments_of
from dask_elastic.runtime.protocol.calls import read_call
from dask_elastic.runtime.protocol.home_calls import CreditInUse, InstallHome
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.worker.homes.handover_message import handover_of, message_of
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

ME, NORTH, SOUTH, EAST = ExecutorId("op", 1), ExecutorId("north", 0), ExecutorId("south", 0), ExecutorId("east", 2)
STATE = pa.record_batch({"k": ["a", "b"], "n": [1, 2]})
SCHEMA = pa.schema({"k": pa.string()})
REST = (CopiedRows("op", False, STATE), CopiedRows("worst", True, STATE.slice(0, 0)))
CHAIN = Chain(2).cut(4, [1, 2], [1, 2]).written(4, FileRef("4", 500, "crc32:0", 3)).cut(5, [1, 0], [9, 9])


def inputs():
    """One that has ended, an idle one, and one without event time."""
    made = Inputs(ME, [NORTH, SOUTH, EAST], timed=[NORTH, SOUTH])
    made.advance(Watermark(NORTH, 70))
    made.advance(Watermark(SOUTH, 20, idle=True))
    made.end(NORTH)
    return made


def handover(**values):
    standing = (Standing(70, True), Standing(), Standing(20))
    given = {
        "copy": 3, "portions": 5, "rest": REST, "schemas": {"op": SCHEMA, "worst": None},
        "event_time": 65, "counts": (3, 0, 1, 0, 0, 25),
        "inputs": inputs(), "watermarks": standing, "sharing": Sharing.of(True, [(90, False)]), "clocks": (60, -5),
        "taken": 12.5, "incarnations": {0: 3}, "flushes": (), "rows": 77, **values,
    }  # fmt: skip
    return Handover(**given)


def sent(value):
    """Return the call as it arrives."""
    credit, chains = (CreditInUse(ExecutorId("next", 0), 100, 2),), {"op": CHAIN, "worst": None}
    call = message_of(JobGeneration("job", 4), ME, value, 8, 9, credit, chains, 2)
    return read_call(InstallHome, arguments_of(call))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rest": (), "schemas": {}, "event_time": None, "counts": (), "clocks": (None, 0)},
    ],
    ids=["whole", "empty"],
)
def test_handover_round_trips(values):
    before = handover(**values)
    call = sent(before)
    after = handover_of(call)
    assert (call.job, call.generation, call.over, call.newest_change) == ("job", 4, 8, 9)
    assert call.credit == (CreditInUse(ExecutorId("next", 0), 100, 2),)
    assert call.chains == {"op": CHAIN, "worst": None}
    assert bool(call.rest) == bool(before.rest)
    for name in Handover.__slots__:
        if name not in ("inputs", "sharing"):
            assert getattr(after, name) == getattr(before, name), name
    assert after.inputs.standing() == before.inputs.standing()
    assert after.sharing.standing() == before.sharing.standing() == (True, ((90, False),))
    assert (after.inputs.time, after.inputs.open, after.inputs.idle) == (before.inputs.time, {SOUTH, EAST}, True)


def test_handover_with_other_watermarks_is_refused():
    arguments = arguments_of(sent(handover()))
    arguments["watermarks"] = arguments["watermarks"][:2]
    with pytest.raises(ProtocolError, match=r"op\[1\] is handed over with 2 standings of watermarks, not 3"):
        handover_of(read_call(InstallHome, arguments))


def executor_with(*counts):
    """Return an executor of two computes, whose stores have a key for each count; None has no state."""
    made = ElasticExecutor(ME, KeySpace(2, 4), 0, {0: 1}, [NORTH])
    stores = [made.store, made.store.behind("worst")]
    for number, (store, count) in enumerate(zip(stores, counts, strict=True)):
        if count is None:
            continue
        key = "ab"[number]
        store.declare(pa.schema({key: pa.string()}), [Field("n", np.dtype(np.int64), 0)])
        store.input_schema = pa.schema({key: pa.dictionary(pa.int8(), pa.string())})
        session, rows = store.session(next(iter(made.routes.tasks))), pa.record_batch({key: ["x"]})
        # A hash of a shard that the executor has.
        located = session.locate(rows, [key], np.array([made.records._groups[0]], np.uint64))
        session.apply(located, lambda current, count=count: [current[0] + count])
    return made


@pytest.mark.parametrize("counts", [(3, 5), (None, 5), (3, None)])
def test_state_and_schemas_of_all_computes_of_an_executor_arrive(counts):
    before, empty = executor_with(*counts), executor_with(None, None)
    copy, incoming = OutgoingCopy(3, 1, "op", before.store), IncomingCopy(3, "op", empty.store)
    for position, portion in enumerate(copy.rest()):
        incoming.install(3, position, portion)
    arrived = handover_of(sent(Handover.of(before, 3, copy.portions, ())))
    after = ElasticExecutor(ME, KeySpace(2, 4), 0, {0: 1}, [NORTH], store=arrived.state(incoming))
    arrived.install(after)
    found = after.store.stores("op")
    for name, store in before.store.stores("op").items():
        assert found[name].extract() == store.extract(), name
        assert found[name].input_schema == store.input_schema, name
