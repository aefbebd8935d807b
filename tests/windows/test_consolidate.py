"""Consolidated partial results are those of one compute over all rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from window_oracle import expected, records
from window_rows import readings, source

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic import windows
from dask_elastic.testing import run
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

LOGIC = {
    "rows": agg.Count(),
    "known": agg.Count("value"),
    "sum": agg.Sum("value"),
    "mean": agg.Mean("value"),
    "most": agg.Max("value"),
    "text": agg.Min("name"),
    "distinct": agg.DistinctCount("value"),
    "spread": agg.custom(
        ["value"],
        list,
        lambda seen, rows: seen + rows["value"].drop_null().to_pylist(),
        list.__add__,
        lambda seen: max(seen) - min(seen) if seen else None,
        pa.int64(),
    ),
}
ORACLE = {
    "rows": ("size", None),
    "known": ("count", "value"),
    "sum": ("sum", "value"),
    "mean": ("mean", "value"),
    "most": ("max", "value"),
    "text": ("min", "name"),
    "distinct": ("nunique", "value"),
    "spread": (lambda values: values.max() - values.min(), "value"),
}
LOW = pc.field("value") < 0


def named(*arguments, **options):
    rows = readings(*arguments, **options)
    rows = rows.filter(pc.is_valid(rows["value"]))
    return rows.append_column("name", pc.cast(rows["value"], pa.string()))


def halves(rows, given, keys=("key",), logic=LOGIC):
    """Return the partial results of rows with low values, and of those with others."""
    stream = source(rows, slack="1s")
    return [
        stream.filter(chosen).key_by(*keys).window(given).compute(logic, name=name, partials=True)
        for name, chosen in (("low", LOW), ("high", ~LOW))
    ]


def results(stream, seed=0):
    stream.sink(de.sinks.Collect(), name="out")
    return run(stream.topology, executors=2, seed=seed).outputs["out"]


@pytest.mark.parametrize(
    "given", ["10s", windows.hopping("60s", "10s"), ["10s", "30s"], windows.sliding(0, "5s", "20s")], ids=str
)
def test_results_are_those_of_all_rows(given):
    rows = named(1)
    both = de.consolidate(halves(rows, given), by="key", name="both")
    found = results(both)
    assert found.schema.names == ["key", "window_start", "window_end", *LOGIC]
    assert records(found) == records(expected(rows, ["key"], source(rows).window(given).windowing, ORACLE).results)


def test_one_stream_is_merged_over_its_keys():
    rows = named(2)
    rows = rows.append_column("odd", pc.equal(pc.bit_wise_and(rows["value"], 1), 1))
    (parts, _) = halves(rows, "30s", ("key", "odd"))
    chosen = rows.filter(LOW)
    whole = expected(chosen, ["key"], source(rows).window("30s").windowing, ORACLE)
    parts.topology.operator("high")
    assert records(results(de.consolidate([parts], by=["key"]))) == records(whole.results)


def test_windows_without_a_key_are_merged_from_those_of_keys():
    rows = named(3)
    found = results(de.consolidate(halves(rows, "30s"), name="all"))
    assert found.schema.names == ["window_start", "window_end", *LOGIC]
    one = rows.set_column(0, "key", pa.array([0] * len(rows)))
    assert records(found) == records(
        expected(one, ["key"], source(rows).window("30s").windowing, ORACLE).results.drop(columns="key")
    )


def test_consolidated_partial_results_can_be_consolidated_again():
    rows = named(4)
    both = de.consolidate(halves(rows, ["10s", "30s"]), by="key", name="both", partials=True)
    found = results(de.consolidate([both], name="all"))
    one = rows.set_column(0, "key", pa.array([0] * len(rows)))
    whole = expected(one, ["key"], source(rows).window(["10s", "30s"]).windowing, ORACLE)
    assert records(found) == records(whole.results.drop(columns="key"))


def parts_of(given="10s", logic=None, name="low", topology=None, **options):
    stream = source(named(5)) if topology is None else de.topology.Stream(topology, ("rows",))
    keyed = stream.key_by("key").window(given)
    return keyed.compute(logic or {"rows": agg.Count()}, name=name, **{"partials": True, **options})


def second(first, **options):
    return parts_of(name="high", topology=first.topology, **options)


def doubled(**options):
    first = parts_of()
    return de.consolidate([first, second(first, **options)], by="key")


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: de.consolidate([]), "consolidate: streams is []; give a list of at least one stream"),
        (
            lambda: de.consolidate([parts_of(partials=False)], name="both"),
            "consolidate 'both': the results of compute 'low' are no partial results of windows; give those of",
        ),
        (lambda: de.consolidate([source(named(5))]), "the results of source 'rows' are no partial results"),
        (
            lambda: de.consolidate([parts_of(windows.session("5s"))], by="key"),
            "compute 'low' has sessions with a gap of 5s, whose bounds differ from key to key",
        ),
        (
            lambda: doubled(given="20s"),
            "the windows of compute 'low' are 10s, those of compute 'high' are 20s; they must be the same",
        ),
        (
            lambda: doubled(logic={"rows": agg.Sum("value")}),
            "the aggregates of compute 'low' are {'rows': Count()}, those of compute 'high' are {'rows': Sum(",
        ),
        (
            lambda: parts_of(logic=lambda rows, instances: rows),
            "compute 'low': partials=True is for what can be merged, aggregates and functions with merge=; pass a",
        ),
        (lambda: de.consolidate([parts_of()], by=3), "consolidate: by is 3; give the name of a key column, or a list"),
        (
            lambda: de.consolidate([parts_of()], by=["key", "kay"], name="both"),
            "consolidate 'both': by has 'kay', which is no key of compute 'low'; its keys are ['key'].",
        ),
        (lambda: parts_of(allowed_lateness="1s"), "compute 'low': partial results are merged once; omit"),
    ],
)
def test_unfit_streams_are_named(build, problem):
    with pytest.raises(TopologyError) as raised:
        build()
    assert problem in str(raised.value)


def test_changed_partial_results_are_named():
    changed = parts_of().map(lambda batch: batch.set_column(3, "rows", pa.array([1] * len(batch))))
    with pytest.raises(SchemaMismatch, match="reads partial results, but the column 'rows' is int64"):
        results(de.consolidate([changed], by="key"))
