"""`Topology.validate` refuses what submit would refuse, as far as it is known without a cluster."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic.runtime.client.submission.described_job import checked_job
from dask_elastic.testing import run
from dask_elastic.vocab.errors import SchemaMismatch, SourceError, TopologyError

ROWS = pa.table({"k": [1], "word": ["a"], "stops": [["a"]]})


def key_of_lists(rows):
    rows.key_by("stops").compute({"n": de.aggregate.Count()}, name="counted")


def sum_of_words(rows):
    rows.key_by("k").compute({"sum": de.aggregate.Sum("word")}, name="summed")


def missing_key(rows):
    rows.key_by("j").compute({"n": de.aggregate.Count()}, name="counted")


def missing_column_behind_a_compute(rows):
    counted = rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    counted.filter(pc.field("m") > 1, name="many").sink(de.sinks.Collect(), name="out")


def unlike_union(rows):
    other = rows.union(rows.topology.source("other", de.sources.Arrow(pa.table({"k": ["a"], "word": ["b"]}))))
    other.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")


def long_chain(rows):
    for number in range(101):
        rows = rows.map(lambda batch: batch, name=f"step{number}")
    rows.sink(de.sinks.Collect(), name="out")


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (key_of_lists, TopologyError, "compute 'counted': the key column 'stops' has type list"),
        (sum_of_words, TopologyError, "'summed'.*'word'.*string"),
        (missing_key, SourceError, "operator 'counted' reads source 'rows': .*no column 'j'"),
        (missing_column_behind_a_compute, SchemaMismatch, "'many'.*'m'"),
        (unlike_union, SchemaMismatch, "'counted'.*'k'"),
        (long_chain, TopologyError, "101 operators follow each other"),
    ],
)
def test_validate_raises_what_submit_raises(build, error, message):
    topology = de.Topology("t")
    build(topology.source("rows", de.sources.Arrow(ROWS)))
    with pytest.raises(error, match=f"(?s){message}") as at_submit:
        checked_job(topology, None, None, False, {})
    with pytest.raises(error) as found:
        topology.validate()
    assert str(found.value) == str(at_submit.value)


def test_run_without_a_cluster_refuses_the_chain_that_submit_refuses():
    topology = de.Topology("t")
    long_chain(topology.source("rows", de.sources.Arrow(ROWS)))
    with pytest.raises(TopologyError, match="101 operators follow each other"):
        run(topology)
    with pytest.raises(TopologyError, match="101 operators follow each other"):
        run(topology, {"rows": ROWS})
