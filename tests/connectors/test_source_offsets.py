from __future__ import annotations

import cloudpickle
import dask.bag
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.connectors import sources
from dask_elastic.testing import check_source
from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.errors import SourceError, TopologyError

SCHEMA = pa.schema({"n": pa.int64(), "word": pa.string(), "at": pa.timestamp("s")})


def table(count):
    numbers = pa.array(range(count), pa.int64())
    return pa.table({"n": numbers, "word": numbers.cast(pa.string()), "at": numbers.cast(pa.timestamp("s"))})


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=4)
OPTIONS = st.fixed_dictionaries(
    {
        "batch_rows": st.integers(1, 15),
        "parallel": st.integers(1, 3),
        "rate": st.none() | st.floats(1, 500),
        "event_time": st.none() | st.just("at"),
    }
)


@settings(max_examples=30, deadline=None)
@given(sizes=SIZES, options=OPTIONS)
def test_arrow_resumes_from_each_offset(sizes, options):
    whole = table(sum(sizes))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    chunks = pa.concat_tables([whole.slice(start, size) for start, size in zip(starts, sizes, strict=True)])
    found = check_source(lambda: sources.Arrow(chunks, **options))
    assert sorted(found["n"].to_pylist() if found.num_rows else []) == list(range(sum(sizes)))


@settings(max_examples=15, deadline=None)
@given(sizes=SIZES, options=OPTIONS, group=st.integers(1, 6))
def test_parquet_resumes_from_each_offset(tmp_path_factory, sizes, options, group):
    directory = tmp_path_factory.mktemp("offsets")
    whole, start = table(sum(sizes)), 0
    for index, size in enumerate(sizes):
        pq.write_table(whole.slice(start, size), directory / f"{index}.parquet", row_group_size=group)
        start += size
    found = check_source(lambda: sources.Parquet(directory, **options), most_offsets=8)
    assert sorted(found["n"].to_pylist() if found.num_rows else []) == list(range(sum(sizes)))


@settings(max_examples=30, deadline=None)
@given(sizes=SIZES, options=OPTIONS, given_schema=st.booleans(), small=st.booleans())
def test_iterable_resumes_from_each_offset(sizes, options, given_schema, small):
    whole = table(sum(sizes))

    def share(instance, instances):
        start = 0
        for index, size in enumerate(sizes):
            rows = whole.slice(start, size)
            start += size
            if index % instances == instance:
                yield rows.combine_chunks().to_batches()[0] if small and size else rows

    found = check_source(lambda: sources.Iterable(share, schema=SCHEMA if given_schema else None, **options))
    assert sorted(found["n"].to_pylist() if found.num_rows else []) == list(range(sum(sizes)))


@settings(max_examples=20, deadline=None)
@given(sizes=SIZES, kind=st.sampled_from(["Push", "DaskQueue"]), event_time=st.none() | st.just("at"))
def test_sources_with_a_spool_resume_from_each_offset(sizes, kind, event_time):
    whole = table(sum(sizes)).combine_chunks().to_batches()
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    sent = [rows.slice(start, size) for rows in whole for start, size in zip(starts, sizes, strict=True)]

    def make():
        options = {"event_time": event_time}
        return sources.Push(SCHEMA, **options) if kind == "Push" else sources.DaskQueue("alerts", SCHEMA, **options)

    assert make().replayable
    found = check_source(make, sent=sent)
    assert (found["n"].to_pylist() if found.num_rows else []) == list(range(sum(sizes)))


@pytest.mark.parametrize("kind", ["Push", "DaskQueue"])
def test_offsets_of_a_source_that_may_lose_rows_continue_to_count(kind):
    """Its mailbox or queue has only what was not read; the offset is the number of batches read."""
    arguments = ("alerts", SCHEMA) if kind == "DaskQueue" else (SCHEMA,)
    source = getattr(sources, kind)(*arguments, replay="at-most-once")
    assert not source.replayable
    assert not source.spooled
    batches = table(6).to_batches(max_chunksize=2)
    empty = batches[0].slice(0, 0)

    def read(offset, waiting):
        context = SourceContext(offset=offset, mailbox=iter(waiting), queue=lambda name: iter(waiting))
        return list(source.read(context))

    first = read(None, [batches[0], empty, batches[1]])
    rest = read(cloudpickle.loads(cloudpickle.dumps(first[-1][1])), batches[2:])
    assert [offset for _, offset in first + rest] == [1, 3, 4]
    assert pa.Table.from_batches([rows for rows, _ in first + rest]).equals(table(6))


@pytest.mark.parametrize(
    "make",
    [
        lambda replay: sources.Push(SCHEMA, replay=replay),
        lambda replay: sources.DaskQueue("alerts", SCHEMA, replay=replay),
        lambda replay: sources.Spark(SCHEMA, replay=replay),
    ],
)
def test_source_that_cannot_rewind_accepts_the_loss_of_rows_only_on_demand(make):
    assert make(None).replay is None
    source = make("at-most-once")
    assert source.columns_read(("n",)).replay == "at-most-once"
    assert "replay='at-most-once'" in repr(source)
    with pytest.raises(TopologyError, match="replay is 'sometimes'"):
        make("sometimes")


def test_source_of_epochs_rewinds_unless_the_loss_of_rows_is_accepted():
    batches = [(rows, (number, 0)) for number, rows in enumerate(table(6).to_batches(max_chunksize=2), 1)]

    def behind(offset):
        return (each for each in batches if offset is None or each[1] > offset)

    source = sources.Spark(SCHEMA)
    assert source.replayable
    assert not sources.Spark(SCHEMA, replay="at-most-once").replayable
    assert [offset for _, offset in source.read(SourceContext(epochs=behind))] == [(1, 0), (2, 0), (3, 0)]
    assert [offset for _, offset in source.read(SourceContext(epochs=behind, offset=(2, 0)))] == [(3, 0)]


def test_sources_over_files_tables_and_functions_rewind():
    made = [sources.Arrow(table(1)), sources.Parquet("x"), sources.Iterable(list)]
    assert [source.replayable for source in made] == [True] * 3


def test_offsets_of_another_kind_of_source_are_refused():
    table = pa.table({"n": [1, 2, 3]})
    made = {
        1: sources.Arrow(table),
        (1, 2, 3): sources.Iterable(lambda: [table]),
        "offset": sources.from_dask(dask.bag.from_sequence([{"n": 1}])),
    }
    for own, source in made.items():
        for offset in made.keys() - {own}:
            with pytest.raises(SourceError, match="is not an offset of this source"):
                list(source.read(SourceContext(offset=offset)))
