"""Outputs of a component."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.topology.component import Exit


def test_schema_metadata_is_dropped_from_outputs():
    emitter = Emitter("rows", (Exit("out"),), {}, ErrorPolicy("fail", print), sink_instance=0)
    rows = pa.record_batch({"k": [1, 2]})
    schemas = set()
    for number in range(3):
        made = rows.replace_schema_metadata({"pandas": f"rows {number}"})
        schemas |= {delivery.batch.rows.schema.serialize().to_pybytes() for delivery in emitter.emit([made], 0.0)}
    assert schemas == {rows.schema.serialize().to_pybytes()}
