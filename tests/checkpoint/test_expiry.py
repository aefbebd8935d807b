"""State with a time to live expires after a restore when it would have without one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import OperatorState
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.state import KeyedStore, StateRows
from dask_elastic.state.layout import StateLayout
from dask_elastic.state.results import state_table
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.state_kind import Value

INPUT = pa.schema({"plane": pa.string()})


def test_times_of_expiry_are_those_of_the_checkpoint(tmp_path):
    operator = Compute("planes", ("plane",), lambda rows, state: rows, {"last": Value(pa.int64(), ttl="1 h")})
    expiries = np.array([1_000.0, 2_000.0, 3_000.0])
    values = [np.array([1, 2, 3]), np.ones(3, np.bool_), expiries]
    identity = np.arange(3, dtype=np.uint64), np.zeros(3, np.uint64), np.zeros(3, np.int32)
    keys = pa.record_batch({"plane": ["a", "b", "c"]})
    rows = StateRows(*identity, keys, StateLayout(operator.state).fields, values, np.zeros(3, np.bool_))
    folder, chain = CheckpointFolder(tmp_path), Chain(1).cut(1, [3], [3])
    file = state_file.write(folder, "state/1/0.arrows", StateHeader("planes", 0, 1, 1, 1, chain.full(1), INPUT), [rows])
    state = OperatorState("planes", ("plane",), 1, 1, (chain.written(1, file).at(1),))
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.int32))
    restore_executor(folder, state, 0, 1, store)
    found, restored = store.rows()
    assert restored[2].tolist() == expiries.tolist()
    left = state_table(operator, INPUT, found, restored, now=2_500.0)
    assert left.to_pylist() == [{"plane": "c", "last": 3}]
