from __future__ import annotations

import copy
import pickle

import pytest

from dask_elastic import aggregate as agg
from dask_elastic import sinks, sources


@pytest.mark.parametrize(
    ("namespace", "name", "hint"),
    [
        (agg, "Avg", "agg has no 'Avg'; did you mean agg.Mean?"),
        (agg, "average", "did you mean agg.Mean?"),
        (agg, "Total", "did you mean agg.Sum?"),
        (agg, "CountDistinct", "did you mean agg.DistinctCount?"),
        (agg, "count_distinct", "did you mean agg.DistinctCount?"),
        (agg, "NUnique", "did you mean agg.DistinctCount?"),
        (agg, "max", "did you mean agg.Max?"),
        (agg, "DistnctCount", "did you mean agg.DistinctCount?"),
        (agg, "Quantile", "agg has no 'Quantile' yet; write an agg.custom"),
        (agg, "First", "agg has no 'First' yet; use compute(function, state="),
        (agg, "Zebra", "it has Aggregate, BoundAggregate, Bundle, Count,"),
        (sources, "Pandas", "did you mean sources.Arrow?"),
        (sources, "Kinesis", "sources has no 'Kinesis' yet; write a generator for sources.Iterable"),
        (sinks, "Print", "did you mean sinks.Call?"),
        (sinks, "Kinesis", "sinks has no 'Kinesis' yet; write a function for sinks.Call"),
    ],
)
def test_unknown_name_error_suggests_what_exists(namespace, name, hint):
    with pytest.raises(AttributeError) as raised:
        getattr(namespace, name)
    assert hint in str(raised.value)


@pytest.mark.parametrize("namespace", [agg, sources, sinks])
def test_every_suggested_name_exists(namespace):
    for meant in namespace._SYNONYMS.values():
        assert getattr(namespace, meant)
    names = {name.lower() for name in namespace.__all__}
    for known in [*namespace._SYNONYMS, *(one for absent in namespace._MISSING.values() for one in absent)]:
        assert known == known.lower().replace("_", "")
        assert known not in names


def test_names_that_exist_are_unaffected():
    assert not hasattr(agg, "__path__")
    assert copy.copy(agg.Max("a")).columns == pickle.loads(pickle.dumps(agg.Max("a"))).columns == ("a",)
