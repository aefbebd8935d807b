"""Results of sessions that have several: which are due, and that no row is left out of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import dask_elastic as de
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.logic import make_logic
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state import KeyedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import SessionWindow, Windowing
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.state_record import TimersDue

SCHEMA = pa.schema({"k": pa.string(), "at": pa.timestamp("us")})


class Sessions:
    """Sessions with a gap of 10, kept until 100 after their end, in one shard."""

    def __init__(self):
        windowing = Windowing((SessionWindow(10),), ("at",), allowed_lateness=100)
        self.store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), int))
        self.store.grant(0, 0)
        operator = Compute("c", ("k",), {"n": de.aggregate.Count()}, windowing=windowing)
        self.logic = make_logic(operator, self.store, self.store.session(0), True)

    def process(self, times, reached):
        rows = pa.record_batch([pa.array(["a"] * len(times)), pa.array(times, pa.timestamp("us"))], schema=SCHEMA)
        return _plain(self.logic.process(rows, hash_columns(rows, ["k"]), reached=reached))

    def reach(self, time):
        schema = pa.schema({"shard": pa.int32()}, {INPUT_SCHEMA: SCHEMA.serialize().to_pybytes()})
        record = pa.record_batch([pa.array([0], pa.int32())], schema=schema)
        policy = ErrorPolicy("fail", lambda letters: None)
        return _plain(self.logic.fire(Batch(record, None, 0.0, record=TimersDue(event=time)), policy))


def _plain(outputs):
    rows = []
    for batch in outputs:
        bounds = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
        others = [batch.column(name).to_pylist() for name in ("revision", "withdrawn", "n")]
        rows += zip(*bounds, *others, strict=True)
    return rows


def test_session_is_kept_for_the_allowed_lateness_and_closes_once():
    sessions = Sessions()
    assert sessions.process([0, 5], None) == []
    assert sessions.reach(14) == []
    assert sessions.reach(15) == [(0, 15, 0, False, 2)]
    assert sessions.reach(114) == []
    assert len(sessions.store) == 1
    assert sessions.process([3], 114) == []
    assert sessions.reach(115) == []
    assert len(sessions.store) == 0


def test_first_row_of_a_closed_session_has_a_result_at_once():
    sessions = Sessions()
    assert sessions.process([0, 40], 20) == [(0, 10, 0, False, 1)]
    assert sessions.reach(50) == [(40, 50, 0, False, 1)]


def test_session_that_is_opened_again_replaces_its_results_when_it_closes():
    sessions = Sessions()
    sessions.process([0, 16], None)
    assert sessions.reach(26) == [(0, 10, 0, False, 1), (16, 26, 0, False, 1)]
    assert sessions.process([20], 26) == []
    assert sessions.process([8], 26) == []
    assert sessions.reach(30) == [(0, 10, 1, True, None), (16, 26, 1, True, None), (0, 30, 0, False, 4)]


def test_row_counts_though_a_restore_has_set_back_the_event_time():
    sessions = Sessions()
    sessions.process([0, 5], None)
    sessions.reach(20)
    # The row is not late now, and changes no bounds.
    assert sessions.process([3], 4) == []
    assert sessions.reach(20) == [(0, 15, 1, False, 3)]
    assert sessions.reach(21) == []


def test_a_gap_of_time_between_cells_of_one_key_divides_them():
    sessions = Sessions()
    sessions.process([0, 9, 18, 28], None)
    assert sessions.reach(60) == [(0, 28, 0, False, 3), (28, 38, 0, False, 1)]
