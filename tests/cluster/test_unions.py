"""Unions of streams whose columns differ in type are refused at submit, or fail the job with both operators' names."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from counting_jobs import RUN

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.vocab.errors import JobFailed, SchemaMismatch, TopologyError

NUMBERS = pa.table({"k": range(100), "v": range(100)})
TEXTS = pa.table({"k": [f"key {number}" for number in range(100)], "v": range(100)})
NARROW = NUMBERS.set_column(1, "v", NUMBERS["v"].cast(pa.int32()))


def union_of(topology, streams, logic=None, **compute):
    stream = streams[0].union(streams[1])
    stream.key_by("k").compute(logic or {"sum": agg.Sum("v")}, name="sums", **compute)
    return topology


def sources(first, second):
    topology = de.Topology("union")
    return topology, [topology.source(name, de.sources.Arrow(rows)) for name, rows in (("a", first), ("b", second))]


@pytest.mark.parametrize(
    ("other", "difference"),
    [(TEXTS, "'k' is int64 from 'a' and string from 'b'"), (NARROW, "'v' is int64 from 'a' and int32 from 'b'")],
)
def test_union_of_known_types_that_differ_is_refused_at_submit(client, other, difference):
    topology, streams = sources(NUMBERS, other)
    kept = [streams[0], streams[1].filter(pc.field("v") >= 0, name="kept")]
    with pytest.raises(SchemaMismatch, match=f"operator 'sums' reads a union of 'a' and 'b', .*: {difference}"):
        de.submit(union_of(topology, kept), client)
    assert de.jobs(client) == []


@pytest.mark.parametrize("keys", [1, 100])
@pytest.mark.parametrize(
    ("other", "difference"), [(TEXTS, "'k' is .* from 'to_."), (NARROW, "'v' is int(32|64) from 'to_.")]
)
def test_union_of_unknown_types_that_differ_fails_the_job(client, other, difference, keys):
    """With one key of each stream, executors may have rows of one stream only."""
    topology, streams = sources(NUMBERS.slice(0, keys), other.slice(7, keys))
    mapped = [stream.map(lambda rows: rows, name=f"to_{stream.producers[0]}") for stream in streams]
    job = de.submit(union_of(topology, mapped, executors=3), client)
    with pytest.raises(
        JobFailed, match=f"operator 'sums' reads a union of 'to_.' and 'to_.', .*{difference}"
    ) as caught:
        job.wait(**RUN)
    assert isinstance(caught.value.__cause__, SchemaMismatch)
    assert all(name in str(caught.value) for name in ("'to_a'", "'to_b'"))


def test_union_of_branches_of_one_source_names_both(client):
    topology = de.Topology("branches")
    rows = topology.source("rows", de.sources.Arrow(NUMBERS))

    def to_text(batch):
        return batch.set_column(0, "k", batch["k"].cast(pa.string()))

    streams = [rows.map(lambda batch: batch, name="same"), rows.map(to_text)]
    job = de.submit(union_of(topology, streams), client)
    with pytest.raises(JobFailed, match=r"reads a union of 'same' and 'to_text', .*'k' is int64 .* and string"):
        job.wait(**RUN)


def test_functions_compare_all_columns(client):
    def nothing(batch, state):
        return None

    topology, streams = sources(NUMBERS, NUMBERS)
    job = de.submit(union_of(topology, streams, nothing), client)
    job.wait(**RUN)
    for other, difference in (
        (NARROW, "'v' is int64 from 'a' and int32 from 'b'"),
        (NUMBERS.select(["k"]), "'v' is only from 'a'"),
        (NUMBERS.select(["v", "k"]), "the order is k, v and v, k"),
    ):
        topology, streams = sources(NUMBERS, other)
        with pytest.raises(SchemaMismatch, match=f"{difference}. Make the columns alike"):
            de.submit(union_of(topology, streams, nothing), client)
        topology, streams = sources(NUMBERS, other)
        mapped = [stream.map(lambda rows: rows, name=f"to_{stream.producers[0]}") for stream in streams]
        job = de.submit(union_of(topology, mapped, nothing, executors=1), client)
        with pytest.raises(JobFailed, match=r"reads a union of 'to_.' and 'to_.', whose columns differ: "):
            job.wait(**RUN)


def test_columns_that_are_not_read_may_differ(client):
    topology, streams = sources(
        NUMBERS.append_column("x", NUMBERS["v"]), TEXTS.select(["v"]).append_column("k", NUMBERS["k"])
    )
    job = de.submit(union_of(topology, streams), client)
    job.wait(**RUN)
    assert job.state("sums").to_arrow().num_rows == 100


def test_aggregate_of_unsupported_type_is_refused_at_submit(client):
    topology, streams = sources(TEXTS, TEXTS)
    with pytest.raises(TopologyError, match=r"compute 'sums', output 'sum': .*Sum\('k'\)"):
        de.submit(union_of(topology, streams, {"sum": agg.Sum("k")}), client)
