"""Outputs of a component."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_elastic.connectors import sinks
from dask_elastic.executor.emitter import Emitter, sliced
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.topology import Source, Topology
from dask_elastic.topology import aggregate as agg
from dask_elastic.topology.component import Exit, build_components
from dask_elastic.vocab.errors import SchemaMismatch
from dask_elastic.vocab.row_bytes import RowBytes

SPACES = {"keyed": KeySpace(2, 4)}


class Numbers(Source):
    def read(self, context):
        yield from ()


def test_schema_metadata_is_dropped_from_outputs():
    emitter = Emitter("rows", (Exit("out"),), {}, ErrorPolicy("fail", print), sink_instance=0)
    rows = pa.record_batch({"k": [1, 2]})
    schemas = set()
    for number in range(3):
        made = rows.replace_schema_metadata({"pandas": f"rows {number}"})
        schemas |= {delivery.batch.rows.schema.serialize().to_pybytes() for delivery in emitter.emit([made], 0.0)}
    assert schemas == {rows.schema.serialize().to_pybytes()}


COLUMNS = {
    "number": pa.array([1, 2, 3, 4, 5, 6, 7, 8]),
    "flag": pa.array([True, False] * 4),
    "price": pa.array([Decimal("1.5")] * 8, pa.decimal128(10, 2)),
    "code": pa.array([b"abc"] * 8, pa.binary(3)),
    "text": pa.array(["", "a", "bb", "ccc", "dddd", "", "x", "yy"]),
    "large": pa.array(["", "a", "bb", "ccc", "dddd", "", "x", "yy"], pa.large_string()),
    "lists": pa.array([[1], [], [2, 3], [4], [5], [6], [7], [8]]),
    "none": pa.nulls(8),
}


@pytest.mark.parametrize("names", [list(COLUMNS), ["number", "text"], ["number", "flag", "code", "large", "none"]])
@pytest.mark.parametrize(("start", "length"), [(0, 8), (3, 5), (8, 0)])
def test_size_of_rows_equals_that_of_arrow(names, start, length):
    rows = pa.record_batch({name: COLUMNS[name] for name in names}).slice(start, length)
    # Arrow counts the bytes that bits lie in, which may be one more.
    assert 0 <= rows.nbytes - RowBytes(rows.schema).of(rows) <= ("flag" in names)


def test_deliveries_carry_the_size_of_their_rows():
    emitter = Emitter("rows", (Exit("out"), Exit("keyed", ("k",), ("k",))), SPACES, ErrorPolicy("fail", print), 0)
    rows = pa.record_batch({"k": range(20), "text": ["some text"] * 20})
    for delivery in emitter.emit([rows, rows.slice(5, 3)], 0.0):
        batch = delivery.batch
        assert batch.row_bytes == batch.rows.nbytes
        assert batch.nbytes == batch.rows.nbytes + (0 if batch.hashes is None else 8 * len(batch.hashes))


def test_batches_of_changing_columns_fit_the_stream_or_raise():
    emitter = Emitter("rows", (Exit("keyed", ("k",), ("k", "v")),), SPACES, ErrorPolicy("fail", print), 0)
    first = pa.record_batch({"k": [1], "v": [0.5]})
    others = [
        pa.record_batch({"note": ["-"], "v": [0.5], "k": [1]}),
        pa.record_batch({"v": [0.5], "k": [1]}),
        first.replace_schema_metadata({"pandas": "1 row"}),
        first,
    ]
    emitted = [delivery.batch.rows for rows in [first, *others] for delivery in emitter.emit([rows], 0.0)]
    assert emitted == [first] * 5
    assert {rows.schema.metadata for rows in emitted} == {None}
    for wrong in ({"k": [1]}, {"k": [1], "v": ["text"]}):
        for _ in range(2):
            with pytest.raises(SchemaMismatch, match="'v'"):
                emitter.emit([pa.record_batch(wrong)], 0.0)
    assert [delivery.batch.rows for delivery in emitter.emit([first], 0.0)] == [first]


def test_large_batches_are_sliced_by_rows_and_by_bytes():
    assert [part.num_rows for part in sliced(pa.record_batch({"x": []}))] == []
    heavy = pa.record_batch({"x": pa.array([b"x" * 2**20] * 40)})
    assert [part.num_rows for part in sliced(heavy)] == [14, 14, 12]
    # A slice of a large batch is not large itself.
    assert [part.num_rows for part in sliced(heavy.slice(3, 2))] == [2]


def test_rows_are_counted_on_every_edge():
    topology = Topology("t")
    rows = topology.source("rows", Numbers())
    odd = rows.filter(lambda batch: pc.equal(pc.bit_wise_and(batch["k"], 1), 1), name="odd")
    twice = odd.map(lambda batch: pa.concat_batches([batch, batch]), name="twice")
    twice.key_by("k").compute({"n": agg.Count()}, name="keyed")
    twice.sink(sinks.Collect(), name="out")
    rows.sink(sinks.Collect(), name="all")
    component = build_components(topology)[0]
    assert component.kinds == ("source", "filter", "map")
    emitter = Emitter("rows", component.outputs, SPACES, ErrorPolicy("fail", print), 0)
    assert set(emitter.edge_rows) == set(component.edges)
    assert set(emitter.edge_rows.values()) == {0}
    emitter.emit([pa.record_batch({"k": range(10)}), pa.record_batch({"k": [1, 2]})], 0.0)
    assert emitter.edge_rows == {
        ("rows", "odd"): 12, ("rows", "all"): 12, ("odd", "twice"): 6, ("twice", "keyed"): 12, ("twice", "out"): 12,
    }  # fmt: skip
