from __future__ import annotations

import datetime as dt
import functools
import zoneinfo

import cloudpickle
import dask
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic import sources
from dask_elastic.connectors.sources.partition_graph import PartitionGraph, bag_rows, frame_rows
from dask_elastic.testing import run
from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.errors import SchemaMismatch, SourceError, TopologyError

FRAME = pd.DataFrame(
    {
        "n": np.arange(10),
        "x": np.arange(10) / 2,
        "at": pd.date_range("2013-01-01", periods=10),
        "word": list("abcdefghij"),
    }
)


def frame(partitions=3):
    return dd.from_pandas(FRAME, npartitions=partitions)


def read(source, **context):
    return list(source.read(SourceContext(**context)))


def column(source, name="n", **context):
    return [value for rows, _ in read(source, **context) for value in rows[name].to_pylist()]


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_partitions_are_read_in_order_and_resume_from_any_offset(parallel, pickled):
    source = sources.from_dask(frame(), parallel=parallel, batch_rows=3)
    source = cloudpickle.loads(cloudpickle.dumps(source)) if pickled else source
    seen = []
    for instance in range(parallel):
        share = {"instance": instance, "instances": parallel}
        whole = column(source, **share)
        assert whole == sorted(whole)
        seen += whole
        done = 0
        for rows, offset in read(source, **share):
            assert rows.num_rows <= 3
            done += rows.num_rows
            assert column(source, offset=offset, **share) == whole[done:]
    assert sorted(seen) == list(range(10))


def test_pickled_source_does_not_contain_the_collection():
    collection = frame().map_partitions(lambda part: part)
    collection.unpicklable = (number for number in ())
    assert column(cloudpickle.loads(cloudpickle.dumps(sources.from_dask(collection)))) == list(range(10))


def test_only_the_columns_that_are_used_are_computed():
    asked = []

    def part(number, columns=None):
        asked.append(columns)
        return FRAME if columns is None else FRAME[columns]

    collection = dd.from_map(part, [0], meta=FRAME.iloc[:0])
    source = sources.from_dask(collection, event_time="at").columns_read(("n",))
    assert read(source)[0][0].schema.names == ["n", "at"]
    assert asked == [["n", "at"]]


def test_schema_is_known_from_dtypes_that_have_one_type():
    source = sources.from_dask(frame()[["n", "x", "at"]])
    assert source.known_schema().equals(read(source)[0][0].schema)
    assert source.known_schema().names == ["n", "x", "at"]
    undecided = FRAME.assign(word=FRAME["word"].astype(object))
    with dask.config.set({"dataframe.convert-string": False}):
        assert sources.from_dask(dd.from_pandas(undecided, npartitions=1)).known_schema() is None


def test_missing_columns_and_event_times_of_other_types_are_refused():
    with pytest.raises(SourceError, match="has no column 'delay'; it has 'n', 'x', 'at', 'word'"):
        sources.from_dask(frame()).columns_read(("delay",)).check()
    with pytest.raises(SourceError, match="event_time 'n' is int64, not a timestamp or date; choose one of 'at'"):
        sources.from_dask(frame(), event_time="n").check()
    sources.from_dask(frame(), event_time="at").check()
    bag = db.from_sequence([{"n": 1}], npartitions=1)
    with pytest.raises(SourceError, match="event_time 'n' is int64"):
        read(sources.from_dask(bag, event_time="n"))


def test_bag_of_dicts_has_one_row_per_item():
    items = [{"n": 1, "d": dt.date(2013, 1, 1)}, {"d": None, "n": 2}, {"n": 3, "d": dt.date(2013, 1, 2)}]
    bag = db.from_sequence(items, npartitions=2)
    found = [row for rows, _ in read(sources.from_dask(bag, event_time="d")) for row in rows.to_pylist()]
    assert [row["n"] for row in found] == [1, 2, 3]
    assert read(sources.from_dask(bag).columns_read(("n",)))[0][0].schema.names == ["n"]


def test_fraction_in_a_bag_is_no_integer_of_its_schema():
    bag = db.from_sequence([{"n": 1}, {"n": 2.5}], npartitions=1)
    with pytest.raises(Exception, match=r"2\.5 has a fraction, and would be truncated as int16"):
        read(sources.from_dask(bag, schema=pa.schema({"n": pa.int16()})))


def test_bag_with_schema_has_its_types():
    bag = db.from_sequence([{"n": None}, {"n": 2}], npartitions=2)
    with pytest.raises(
        SchemaMismatch, match=r"partition 1: column 'n': int64 instead of null.*the first partition with"
    ):
        read(sources.from_dask(bag))
    source = sources.from_dask(bag, schema=pa.schema({"n": pa.int16(), "m": pa.string()}))
    assert source.known_schema() == pa.schema({"n": pa.int16(), "m": pa.string()})
    assert [row for rows, _ in read(source) for row in rows.to_pylist()] == [
        {"n": None, "m": None},
        {"n": 2, "m": None},
    ]
    with pytest.raises(ValueError, match="items have 'n', which schema= lacks"):
        read(sources.from_dask(bag, schema=pa.schema({"m": pa.string()})))
    with pytest.raises(TypeError, match="the item 5 is a int; map it to a dict"):
        read(sources.from_dask(db.from_sequence([5])))


def test_frame_with_schema_has_its_types():
    collection = dd.from_pandas(pd.DataFrame({"n": [1, 2], "s": pd.Series([None, 3], dtype=object)}), npartitions=2)
    schema = pa.schema({"n": pa.int16(), "s": pa.float32()})
    source = sources.from_dask(collection, schema=schema).columns_read(("s",))
    assert source.known_schema() == pa.schema({"s": pa.float32()})
    assert column(source, "s") == [None, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sources.from_dask(FRAME), "takes a Dask DataFrame or Bag, not DataFrame"),
        (lambda: sources.from_dask(frame()["n"]), "to_frame"),
        (lambda: sources.from_dask(dask.delayed(1)), "from_delayed"),
        (lambda: sources.from_dask(frame(), batch_rows=0), "from_dask: batch_rows is 0"),
        (lambda: sources.from_dask(frame(), schema={"n": "int"}), "from_dask: schema is"),
        (lambda: sources.from_dask(frame(), rate=0), "rate is 0"),
        (lambda: sources.from_dask(dd.from_pandas(pd.DataFrame({0: [1]}), npartitions=1)), "rename them"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(TopologyError, match=message):
        make()


def test_shared_tasks_are_those_that_several_partitions_need():
    assert PartitionGraph(frame(), None, None).shared() == set()
    shuffled = PartitionGraph(frame().shuffle("n", shuffle_method="tasks"), None, None)
    kept = shuffled.shared()
    assert kept
    assert not kept & set(shuffled.keys)
    centred = PartitionGraph(frame()[["x"]] - frame()["x"].mean(), None, None)
    assert 0 < len(centred.shared()) < 3, "the partitions themselves are read again instead of kept"


def test_run_reads_partitions_without_a_cluster():
    topology = de.Topology("run")
    rows = topology.source("rows", sources.from_dask(frame().assign(k=FRAME["n"] % 3), rate=5))
    rows.key_by("k").compute({"sum": agg.Sum("x")}, name="sums")
    found = run(topology).state["sums"].sort_by("k").to_pydict()
    assert found == {"k": [0, 1, 2], "sum": FRAME.groupby(FRAME["n"] % 3)["x"].sum().tolist()}


def test_source_stops_between_batches():
    assert read(sources.from_dask(frame()), stopping=lambda: True) == []


def test_source_prints_its_partitions():
    assert repr(sources.from_dask(frame(), rate=5)) == "DaskPartitions(<DataFrame of 3 partitions>, rate=5)"


NOON = dt.datetime(2024, 6, 1, 12)
ROME = NOON.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Rome"))


@pytest.mark.parametrize(("time", "zone"), [(NOON, "Europe/Rome"), (ROME, None)])
@pytest.mark.parametrize("kind", ["frame", "objects", "arrow", "bag"])
def test_times_with_a_zone_and_without_are_not_taken_for_each_other(time, zone, kind):
    """`sources.Push`, `Arrow` and `Spark` refuse them as well: which instant a time is, only its sender knows."""
    schema = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", zone)})
    given = pd.DataFrame({"n": [1], "at": [time]})
    if kind == "objects":
        given["at"] = pd.Series([time], dtype=object)
    elif kind == "arrow":
        given["at"] = pd.Series([time], dtype=pd.ArrowDtype(pa.timestamp("us", None if zone else "Europe/Rome")))
    rows = functools.partial(*((bag_rows, [{"n": 1, "at": time}]) if kind == "bag" else (frame_rows, given)))
    with pytest.raises(ValueError, match=r"column 'at'.* zone.*schema="):
        rows(schema)
    kept = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", None if zone else "Europe/Rome")})
    assert rows(kept)["at"].to_pylist() == [time]


def test_times_with_a_zone_and_without_are_not_mixed():
    bag = db.from_sequence([{"at": NOON}, {"at": None}, {"at": ROME}], npartitions=1)
    with pytest.raises(ValueError, match=r"with a zone, and timestamp.us. is for times without one"):
        read(sources.from_dask(bag))
