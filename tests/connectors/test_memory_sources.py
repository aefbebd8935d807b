from __future__ import annotations

import datetime
from itertools import chain

import cloudpickle
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic import connectors
from dask_elastic.connectors import sources
from dask_elastic.connectors.sources import iterable
from dask_elastic.topology.source import Source, SourceContext
from dask_elastic.vocab.errors import SchemaMismatch, SourceError, TopologyError

TABLE = pa.table({"n": range(10), "word": list("abcdefghij"), "at": pa.array(range(10), pa.timestamp("s"))})


def read(source: Source, **context: object) -> list[tuple[pa.RecordBatch, object]]:
    return list(source.read(SourceContext(**context)))


def column(source: Source, name: str = "n", **context: object) -> list[object]:
    return [value for rows, _ in read(source, **context) for value in rows[name].to_pylist()]


def assert_resumes_anywhere(source: Source, instances: int = 1) -> None:
    """Assert that a read resumed from any offset yields exactly the rows after it."""
    for instance in range(instances):
        share = {"instance": instance, "instances": instances}
        whole = column(source, **share)
        done = 0
        for rows, offset in read(source, **share):
            done += rows.num_rows
            again = cloudpickle.loads(cloudpickle.dumps(offset))
            assert column(source, offset=again, **share) == whole[done:]


def test_package_exports_sources_and_sinks():
    assert connectors.sources is sources
    assert connectors.sinks.Parquet is not sources.Parquet


@pytest.mark.parametrize("rows", [TABLE, TABLE.to_batches()[0], TABLE.to_batches(max_chunksize=3)])
def test_arrow_reads_tables_and_batches(rows):
    assert column(sources.Arrow(rows)) == list(range(10))


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    batch_rows=st.integers(1, 20),
    parallel=st.integers(1, 4),
    rate=st.none() | st.floats(1, 1000),
)
def test_arrow_instances_share_rows_and_resume_from_any_offset(sizes, batch_rows, parallel, rate):
    count = sum(sizes)
    whole = pa.RecordBatch.from_pydict({"n": list(range(count))})
    starts = np.cumsum([0, *sizes[:-1]])
    batches = [whole.slice(start, size) for start, size in zip(starts, sizes, strict=True)]
    source = sources.Arrow(batches, batch_rows=batch_rows, rate=rate, parallel=parallel)
    shares = [column(source, instance=instance, instances=parallel) for instance in range(parallel)]
    assert sorted(chain.from_iterable(shares)) == list(range(count))
    assert all(share == sorted(share) for share in shares)
    assert_resumes_anywhere(source, parallel)


def test_arrow_sends_only_the_columns_that_are_read():
    source = sources.Arrow(TABLE, event_time="at")
    pruned = source.columns_read(("n",))
    assert pruned.table.schema.names == ["n", "at"]
    assert read(pruned)[0][0].schema.names == ["n", "at"]
    assert len(source.table.schema.names) == 3
    assert source.columns_read(None).table.schema.names == ["n", "word", "at"]
    assert sources.Arrow(TABLE).columns_read(()).table.schema.names == ["n"]


def test_arrow_offers_only_the_given_columns():
    source = sources.Arrow(TABLE, columns=["word", "n"])
    assert read(source)[0][0].schema.names == ["word", "n"]
    with pytest.raises(SourceError, match="has no column 'at'; it has 'word', 'n'"):
        source.columns_read(("at",)).check()


def test_missing_column_is_named_with_the_existing_ones():
    pruned = sources.Arrow(TABLE).columns_read(("n", "delay"))
    for act in (pruned.check, lambda: read(pruned)):
        with pytest.raises(SourceError, match="has no column 'delay'; it has 'n', 'word', 'at'"):
            act()


def test_columns_of_one_name_are_refused_if_they_are_read():
    rows = pa.table([[1], [2], [3]], names=["a", "a", "b"])
    with pytest.raises(SourceError, match=r"2 columns are named 'a'\. Rename one, or leave it out with columns="):
        sources.Arrow(rows).check()
    only = sources.Arrow(rows, columns=["b"])
    only.check()
    assert [batch.to_pydict() for batch, _ in only.read(SourceContext())] == [{"b": [3]}]


def test_event_time_of_other_type_is_refused():
    sources.Arrow(TABLE, event_time="at").check()
    sources.Arrow(pa.table({"day": [datetime.date(2013, 1, 1)]}), event_time="day").check()
    with pytest.raises(SourceError, match="no column 'when' for event_time; choose one of 'n', 'word', 'at'"):
        sources.Arrow(TABLE, event_time="when").check()
    with pytest.raises(SourceError, match="event_time 'n' is int64, not a timestamp or date; choose one of 'at'"):
        sources.Arrow(TABLE, event_time="n").check()
    with pytest.raises(SourceError, match="no column is a time; cast one"):
        sources.Arrow(TABLE.select(["n"]), event_time="n").check()


def test_rate_limits_rows_per_batch():
    source = sources.Arrow(pa.table({"n": range(1000)}), rate=200, parallel=2)
    assert {rows.num_rows for rows, _ in read(source, instances=2)} == {10}


def test_arrow_stops_when_job_is_stopping():
    answers = iter([False, True])
    source = sources.Arrow(TABLE, batch_rows=2)
    assert column(source, stopping=lambda: next(answers)) == [0, 1]


@pytest.mark.parametrize("make", [dict, pa.table, pd.DataFrame, pl.DataFrame, pa.RecordBatch.from_pydict])
def test_arrow_takes_tables_of_every_kind(make):
    source = sources.Arrow(make({"n": [3, 1], "x": [0.5, 1.5]}))
    assert [rows.to_pydict() for rows, _ in source.read(SourceContext())] == [{"n": [3, 1], "x": [0.5, 1.5]}]


def test_arrow_batches_with_different_schemas_are_refused():
    other = pa.RecordBatch.from_pydict({"n": ["x"]})
    with pytest.raises(SchemaMismatch, match="batch 1: column 'n': string instead of int64"):
        sources.Arrow([pa.RecordBatch.from_pydict({"n": [1]}), other])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sources.Arrow([1]), r"takes a pyarrow .*, a pandas or Polars DataFrame, .*, not list"),
        (lambda: sources.Arrow([]), "takes a pyarrow RecordBatch or Table"),
        (lambda: sources.Arrow({"n": [1, 2], "x": [1]}), "the dict cannot become rows: .* expected length 2"),
        (lambda: sources.Arrow(TABLE, batch_rows=0), "batch_rows is 0"),
        (lambda: sources.Arrow(TABLE, rate=0), "rate is 0"),
        (lambda: sources.Arrow(TABLE, rate="fast"), "rate is 'fast'"),
        (lambda: sources.Arrow(TABLE, parallel=0), "parallel is 0"),
        (lambda: sources.Arrow(TABLE, event_time=3), "event_time is 3"),
        (lambda: sources.Arrow(TABLE, slack="1 min"), "slack is '1 min', but there is no event_time"),
        (lambda: sources.Arrow(TABLE, event_time="at", slack="soon"), "Arrow: slack is 'soon'"),
        (lambda: sources.Arrow(TABLE, event_time="at", slack="-1s"), "slack is '-1s'; give a duration of 0 or more"),
        (lambda: sources.Arrow(TABLE, event_time="at", slack=float("inf")), "slack is inf; give a duration of 0 or"),
        (lambda: sources.Arrow(TABLE, event_time="at", slack=""), "slack is '', which is not a duration"),
        (lambda: sources.Arrow(TABLE, columns="n"), "columns is 'n'; give a list"),
        (lambda: sources.Iterable([1]), "takes a function that returns an iterable, not list"),
        (lambda: sources.Iterable(lambda: [], schema={"n": "int"}), "schema is"),
        (lambda: sources.Iterable(lambda: [], batch_rows=0), "batch_rows is 0"),
        (lambda: sources.Iterable(lambda: [], parallel=2), r"parallel=2 needs .*\(instance, instances\)"),
        (lambda: sources.Iterable(lambda one: []), r"cannot be called; it must take no arguments"),
        (lambda: sources.Push({"n": "int"}), "takes a pyarrow Schema"),
        (lambda: sources.Push(pa.schema([("n", pa.int8()), ("n", pa.int8())])), "occurs twice"),
    ],
)
def test_invalid_options_are_refused(make, message):
    with pytest.raises(TopologyError, match=message):
        make()


def items() -> list[object]:
    return [
        pa.RecordBatch.from_pydict({"n": [0, 1], "x": [0.5, 1.5]}),
        {"x": np.array([2.5, 3.5]), "n": np.array([2, 3])},
        pa.table({"n": [4, 5, 6], "x": pa.nulls(3)}),
        pd.DataFrame({"n": [7], "x": [7.5]}, index=["row"]),
        {"n": pd.Series([8, 9]), "x": [None, 9.5]},
        pa.table({"n": pa.array([], pa.int64()), "x": pa.array([], pa.float64())}),
    ]


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_iterable_yields_one_schema_and_resumes_from_any_offset(batch_rows):
    source = sources.Iterable(items, batch_rows=batch_rows)
    assert column(source) == list(range(10))
    assert {str(rows.schema) for rows, _ in read(source)} == {"n: int64\nx: double"}
    assert_resumes_anywhere(source)
    assert read(source.columns_read(("x",)))[0][0].schema.names == ["x"]


def test_iterable_warns_when_skipping_takes_long(monkeypatch, caplog):
    monkeypatch.setattr(iterable, "LONG_SKIP", -1.0)
    source = sources.Iterable(lambda: ({"n": [number]} for number in range(5)))

    def logged():
        return [record.getMessage() for record in caplog.records if record.name == iterable.logger.name]

    assert column(source) == [0, 1, 2, 3, 4]
    assert logged() == []
    assert column(source, offset=(3, 0)) == [3, 4]
    [message] = logged()
    assert "skips what it had yielded before the checkpoint, 0 of 3 items so far" in message
    assert "sources.Push" in message


def test_iterable_instances_yield_their_own_rows():
    def share(instance: int, instances: int):
        yield {"n": list(range(instance, 10, instances))}

    source = sources.Iterable(share, parallel=2)
    assert column(source, instance=1, instances=2) == [1, 3, 5, 7, 9]
    assert column(sources.Iterable(share)) == list(range(10))


def test_iterable_calls_factory_with_defaults_without_arguments():
    def numbers(count: int = 3):
        yield {"n": range(count)}

    assert column(sources.Iterable(numbers)) == [0, 1, 2]


def test_iterable_accepts_builtin_without_signature():
    assert read(sources.Iterable(dict)) == []


@pytest.mark.parametrize(
    ("yielded", "message"),
    [
        ([[1, 2]], "yielded list as item 0; make it yield a pyarrow"),
        ([{"n": [1]}, "row"], "yielded str as item 1"),
        ([{"n": [1], "x": [1, 2]}], "item 0 of .* cannot become rows"),
        ([{"n": 5}], "item 0 of .* cannot become rows"),
        (5, "returned int, which is not iterable"),
        (None, "returned NoneType"),
    ],
)
def test_iterable_error_names_factory_and_yielded_item(yielded, message):
    def my_rows():
        return yielded

    with pytest.raises(SourceError, match=message) as caught:
        read(sources.Iterable(my_rows))
    assert "my_rows" in str(caught.value)


def test_iterable_refuses_items_of_another_schema():
    rows = [{"n": [1]}, {"n": ["x"]}]
    with pytest.raises(SchemaMismatch, match=r"item 1: column 'n': string instead of int64.*The first item sets"):
        read(sources.Iterable(lambda: rows))
    nulls_first = [{"n": [None]}, {"n": [1]}]
    source = sources.Iterable(lambda: nulls_first, schema=pa.schema({"n": pa.int64()}))
    assert column(source) == [None, 1]
    assert column(source, offset=(1, 0)) == [1]


def test_iterable_casts_items_to_a_declared_schema():
    schema = pa.schema({"n": pa.int64(), "word": pa.string()})
    large = pa.record_batch({"word": pa.array(["a"], pa.large_string()), "n": pa.array([1], pa.int32())})
    [(rows, _), (same, _)] = read(sources.Iterable(lambda: [large, {"n": [2], "word": ["b"]}], schema=schema))
    assert rows.equals(pa.record_batch({"n": [1], "word": ["a"]}, schema=schema))
    assert same.schema.equals(schema)
    wrong = sources.Iterable(lambda: [{"n": ["1"], "word": ["a"]}], schema=schema)
    with pytest.raises(SchemaMismatch, match="column 'n'"):
        read(wrong)


def test_iterable_checks_event_time_when_schema_is_known():
    with pytest.raises(SourceError, match="no column 'at' for event_time"):
        read(sources.Iterable(items, event_time="at"))
    with pytest.raises(SourceError, match="event_time 'n' is int64"):
        sources.Iterable(items, event_time="n", schema=pa.schema({"n": pa.int64()})).check()
    sources.Iterable(items, event_time="at").check()


def test_iterable_stops_when_job_is_stopping():
    assert column(sources.Iterable(items), stopping=lambda: True) == []


def test_iterable_raises_the_users_exception_unchanged():
    def broken():
        yield {"n": [1]}
        raise ZeroDivisionError("user error")

    with pytest.raises(ZeroDivisionError, match="user error"):
        read(sources.Iterable(broken))


PUSHED = pa.schema([pa.field("n", pa.int64(), nullable=False), ("word", pa.string())])


def test_push_reads_its_mailbox():
    source = sources.Push(PUSHED)
    sent = [{"word": ["a"], "n": [1]}, {"word": [], "n": []}, {"n": [2], "word": ["b"]}]
    batches = [pa.RecordBatch.from_pydict(rows, pa.schema([PUSHED.field(name) for name in rows])) for rows in sent]
    got = read(source, mailbox=iter(batches))
    assert [(rows.to_pylist(), offset) for rows, offset in got] == [
        ([{"n": 1, "word": "a"}], 1),
        ([{"n": 2, "word": "b"}], 3),
    ]
    assert source.pushed
    assert read(source.columns_read(("word",)), mailbox=iter(batches[:1]))[0][0].schema.names == ["word"]
    assert read(source, mailbox=iter(batches), stopping=lambda: True) == []


def test_push_names_differing_columns():
    with pytest.raises(SchemaMismatch, match=r"sources\.Push: missing: 'word'; unexpected: 'w'"):
        read(sources.Push(PUSHED), mailbox=iter([pa.RecordBatch.from_pydict({"n": [1], "w": ["a"]})]))


def test_push_without_mailbox_is_refused():
    with pytest.raises(SourceError, match="no mailbox"):
        read(sources.Push(PUSHED))
    with pytest.raises(SourceError, match="event_time 'n' is int64"):
        sources.Push(PUSHED, event_time="n").check()


@pytest.mark.parametrize("slack", [None, 0, "0s", datetime.timedelta(0)])
def test_slack_of_zero_is_none_in_any_form(slack):
    assert sources.Arrow(TABLE, event_time="at", slack=slack).slack == 0.0


def test_sources_print_and_pickle():
    source = sources.Arrow(TABLE, event_time="at", slack="1 min", rate=5, parallel=2)
    assert repr(source) == "Arrow(<10 rows>, rate=5, event_time='at', slack=60.0, parallel=2)"
    assert repr(sources.Push(PUSHED)) == "Push(<n, word>)"
    assert repr(sources.Iterable(items)) == "Iterable(items)"
    assert column(cloudpickle.loads(cloudpickle.dumps(source))) == list(range(10))
