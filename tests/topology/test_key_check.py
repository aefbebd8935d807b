from __future__ import annotations

import pyarrow as pa
import pytest

from dask_elastic import aggregate as agg
from dask_elastic import sinks, sources
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.runtime.client.submission.described_job import checked_job
from dask_elastic.testing import run
from dask_elastic.topology import Topology
from dask_elastic.vocab.errors import TopologyError

AT = pa.array([0, 60], pa.timestamp("s"))
REFUSED = {
    "list": pa.array([["a"], ["b"]]),
    "struct": pa.array([{"a": 1}, {"a": 2}]),
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "dictionary of lists": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([["a"], ["b"]])),
}
ACCEPTED = {
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"])),
    "extension": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, b"1" * 16], pa.binary(16))),
    "view": pa.array(["a", "b"], pa.string_view()),
    "null": pa.nulls(2),
}


def keyed(keys):
    topology = Topology("routes")
    rows = topology.source("flights", sources.Arrow(pa.table({"stops": keys, "at": AT}), event_time="at"))
    return topology, rows.key_by("stops")


def counted(keyed):
    keyed.compute({"flights": agg.Count()}, name="per_route")


def windowed(keyed):
    keyed.window("1h").compute({"flights": agg.Count()}, name="per_route").sink(sinks.Collect(), name="out")


def joined(keyed):
    keyed.join(keyed, within="1h", name="per_route").sink(sinks.Collect(), name="out")


@pytest.mark.parametrize("reader", [counted, windowed, joined])
@pytest.mark.parametrize("keys", REFUSED.values(), ids=REFUSED)
def test_key_of_a_type_without_hash_is_refused_before_the_job_runs(keys, reader):
    topology, stream = keyed(keys)
    reader(stream)
    reason = r"compute 'per_route': the key column 'stops' has type .*, which cannot be part of a key\. Use map"
    with pytest.raises(TopologyError, match=reason):
        checked_job(topology, None, None, False, {})
    with pytest.raises(TopologyError, match=reason):
        run(topology)


@pytest.mark.parametrize("keys", ACCEPTED.values(), ids=ACCEPTED)
def test_keys_of_encoded_and_extension_types_are_accepted(keys):
    topology, stream = keyed(keys)
    counted(stream)
    checked_job(topology, None, None, False, {})
    assert sum(run(topology).state["per_route"]["flights"].to_pylist()) == 2


def test_key_of_unknown_type_is_refused_when_its_rows_arrive():
    with pytest.raises(TopologyError, match="the key column 'stops' has type list"):
        hash_columns(pa.record_batch({"stops": [["a"]]}), ["stops"])
