"""A job does not continue with another kind of source or sink where a checkpoint has an offset or prepared rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.runtime.client.resume import _check_connectors
from dask_elastic.runtime.client.submission.described_job import checked_job
from dask_elastic.topology.source import Source
from dask_elastic.vocab.errors import SubmitError

TABLE = pa.table({"n": [1, 2]})


class Own(Source):
    def read(self, context):
        yield TABLE.to_batches()[0], 1


class Followed(de.sources.Arrow):
    """What a program makes of a source of this package continues where that has stopped."""


def summaries(source, sink):
    topology = de.Topology("job")
    topology.source("rows", source).sink(sink, name="out")
    return checked_job(topology, None, None, False, {"checkpoint": "memory://other-connectors"}).summaries


def rows():
    yield {"n": [1, 2]}


ARROW, ITERABLE = de.sources.Arrow(TABLE), de.sources.Iterable(rows)
PARQUET, CALL = de.sinks.Parquet("/tmp/other-connectors"), de.sinks.Call(print)


def check(now, before, prepared=("part-0",)):
    positions = {"rows": (Pickled.of(1),)}
    handles = {"out": (Pickled.of(prepared) if prepared else None,)}
    topology = FileRef("topology/1.pickle", 9, "crc32:0")
    manifest = Manifest("job", 3, 1, 0.0, 0.5, topology, positions=positions, prepared=handles)
    _check_connectors(summaries(*now), summaries(*before), manifest)


def test_another_kind_of_source_is_refused_in_place_of_one_with_an_offset():
    with pytest.raises(SubmitError, match=r"'rows' is sources\.Iterable, and in checkpoint 3 it is sources\.Arrow"):
        check((ITERABLE, PARQUET), (ARROW, PARQUET))


def test_instances_of_arrow_do_not_continue_with_other_blocks():
    def made(batch_rows, parallel):
        return de.sources.Arrow(TABLE, batch_rows=batch_rows, parallel=parallel), PARQUET

    with pytest.raises(SubmitError, match=r"'rows' is sources\.Arrow in blocks of 5 rows, .* in blocks of 3 rows: its"):
        check(made(5, 2), made(3, 2))
    check(made(5, 1), made(3, 1))


def test_another_kind_of_sink_is_refused_in_place_of_one_with_prepared_rows():
    with pytest.raises(SubmitError, match=r"'out' is sinks\.Call, and .* sinks\.Parquet: it has prepared rows\. Leave"):
        check((ARROW, CALL), (ARROW, PARQUET))
    check((ARROW, CALL), (ARROW, PARQUET), prepared=())


def test_sources_of_one_kind_and_those_of_a_program_continue():
    check((ARROW, PARQUET), (ARROW, PARQUET))
    check((Followed(TABLE), PARQUET), (ARROW, PARQUET))
    check((Own(), PARQUET), (ARROW, PARQUET))
    check((ARROW, PARQUET), (Own(), PARQUET))
