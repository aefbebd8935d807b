"""The refusal of keys whose type cannot be part of a key, before a job runs."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.columns.key_types import can_be_key, not_a_key
from dask_elastic.vocab.errors import TopologyError


def check_keys(topology: OperatorGraph, inputs: Mapping[str, pa.Schema | None]) -> None:
    """Refuse key columns whose type cannot be part of a key, as far as types are known before a job runs.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    inputs : mapping of str to Schema or None
        The schema of each stateful operator's input; None if it is not known.

    Raises
    ------
    TopologyError
        If a key column has another type. It names operator, column and type.

    Examples
    --------
    >>> from dask_elastic import Topology, aggregate, sources
    >>> topology = Topology("routes")
    >>> rows = topology.source("flights", sources.Arrow(pa.table({"stops": [["JFK", "LAX"]]})))
    >>> counted = rows.key_by("stops").compute({"flights": aggregate.Count()}, name="routes")
    >>> check_keys(topology, {"routes": pa.schema({"stops": pa.string()})})
    >>> check_keys(topology, {"routes": pa.schema({"stops": pa.list_(pa.string())})})
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: compute 'routes': the key column 'stops' has type list<... cannot be ...
    """
    for compute in topology.operators:
        schema = inputs.get(compute.name)
        if not isinstance(compute, Compute) or schema is None:
            continue
        for key in compute.keys:
            if key in schema.names and not can_be_key(schema.field(key).type):
                raise TopologyError(f"compute {compute.name!r}: {not_a_key(key, schema.field(key).type)}")
