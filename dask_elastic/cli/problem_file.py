"""Reads and writes placement problems: JSON for small ones written by hand, Parquet for large ones.

JSON
    One object, with the names of `PlacementProblem`'s parameters. Only ``load``, ``current`` and ``bins`` are required.
    ``draining`` and ``pinned`` are lists of numbers; ``traffic`` is an object of three lists, ``source``, ``target``
    and ``bytes_per_second``.
Parquet
    One row per group. The columns ``load``, ``current``, ``state_bytes``, ``size`` and ``pinned`` are always there,
    ``operator``, ``history``, ``sends_to`` and ``bytes_per_second`` where the problem has them. The rest is JSON
    in the metadata of the schema, under ``dask_elastic``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.vocab.errors import PlanningError

_METADATA = b"dask_elastic"
_NAMES = tuple(field.name for field in fields(PlacementProblem) if field.name != "pause")
_REQUIRED = ("load", "current", "bins")
_RESOURCES = "resources"
"""The number of resources, if loads are lists: without groups, the lists do not show it."""

_OF_BINS = ("bins", "capacity", "draining", "max_moves", "max_cost")
_TRAFFIC = ("source", "target", "bytes_per_second")


def save(problem: PlacementProblem, path: Path) -> None:
    """Write a problem to a file.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    path : Path
        The file, which ends in ``.json`` or ``.parquet``.

    Raises
    ------
    PlanningError
        If it has another ending.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     path = Path(directory) / "problem.json"
    ...     save(PlacementProblem([4, 4], [0, 1], 2, max_moves=1), path)
    ...     load(path).max_moves
    1
    """
    if _is_json(path):
        path.write_text(json.dumps(_plain(problem)) + "\n", encoding="utf-8")
    else:
        pq.write_table(_table(problem), path)


def load(path: Path) -> PlacementProblem:
    """Read a problem from a file.

    Parameters
    ----------
    path : Path
        The file, which ends in ``.json`` or ``.parquet``.

    Returns
    -------
    PlacementProblem
        The saved problem.

    Raises
    ------
    PlanningError
        If it has another ending, or holds no well-formed problem; names what is wrong.
    OSError
        If it cannot be read.
    """
    read: Callable[[Path], dict[str, Any]] = _from_json if _is_json(path) else _from_parquet
    try:
        return _problem(read(path))
    except (PlanningError, ValueError, TypeError, OverflowError) as error:
        raise PlanningError(f"{path} holds no placement problem: {error}") from error


def _is_json(path: Path) -> bool:
    ending = path.suffix.lower()
    if ending not in (".json", ".parquet"):
        raise PlanningError(f"{path} ends in {ending!r}: give a file that ends in .json or .parquet.")
    return ending == ".json"


def _problem(given: Mapping[str, Any]) -> PlacementProblem:
    values = dict(given)
    unknown = [name for name in values if name not in (*_NAMES, _RESOURCES)]
    if unknown:
        raise PlanningError(f"it has {unknown[0]!r}, which no problem has; known are {', '.join(_NAMES)}.")
    missing = [name for name in _REQUIRED if values.get(name) is None]
    if missing:
        raise PlanningError(f"it has no {missing[0]!r}; {', '.join(_REQUIRED)} are required.")
    resources = values.pop(_RESOURCES, None)
    if resources is not None:
        values["load"] = np.reshape(np.array(values["load"], dtype=np.float64), (len(values["load"]), resources))
    for name in ("current", "operator", "size"):
        # An empty list has no type.
        if isinstance(values.get(name), list) and not values[name]:
            values[name] = np.zeros(0, dtype=np.int64)
    if values.get("traffic") is not None:
        values["traffic"] = _matrix(values["traffic"], len(values["load"]))
    return PlacementProblem(**values)


def _matrix(given: Any, groups: int) -> Any:
    """Return traffic as a matrix."""
    if not isinstance(given, Mapping) or {*given} != {*_TRAFFIC}:
        raise PlanningError(f"traffic is no object of {', '.join(_TRAFFIC)}.")
    source, target = (np.array(given[name], dtype=np.int64) for name in _TRAFFIC[:2])
    rate = np.array(given[_TRAFFIC[2]], dtype=np.float64)
    if not source.shape == target.shape == rate.shape == (len(rate),):
        raise PlanningError(f"traffic has {source.size} sources, {target.size} targets and {rate.size} rates.")
    for name, ends in (("source", source), ("target", target)):
        wrong = ends[(ends < 0) | (ends >= groups)]
        if wrong.size:
            raise PlanningError(f"traffic has {name} {int(wrong[0])}: groups are 0 to {groups - 1}.")
    return sp.coo_matrix((rate, (source, target)), shape=(groups, groups))


def _plain(problem: PlacementProblem) -> dict[str, Any]:
    """Return a problem as JSON values."""
    plain: dict[str, Any] = {}
    for name in _NAMES:
        value = getattr(problem, name)
        if name == "traffic" and value is not None:
            pairs = value.tocoo()
            value = dict(zip(_TRAFFIC, (pairs.row.tolist(), pairs.col.tolist(), pairs.data.tolist()), strict=True))
        elif name in ("draining", "pinned"):
            value = np.flatnonzero(value).tolist()
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        if value is not None:
            plain[name] = value
    if problem.load.ndim == 2:
        plain[_RESOURCES] = problem.load.shape[1]
    return plain


def _from_json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise PlanningError(f"it is a JSON {type(found).__name__}, not an object.")
    return found


def _table(problem: PlacementProblem) -> pa.Table:
    """Return a problem as a table of groups."""
    columns: dict[str, pa.Array] = {
        "load": pa.array(problem.load) if problem.load.ndim == 1 else _fixed(problem.load),
        **{name: pa.array(getattr(problem, name)) for name in ("current", "state_bytes", "size", "pinned")},
    }
    if problem.operator is not None:
        columns["operator"] = pa.array(problem.operator)
    if problem.history is not None:
        columns["history"] = _fixed(problem.history.T)
    if problem.traffic is not None:
        offsets, targets = (
            pa.array(part.astype(np.int64)) for part in (problem.traffic.indptr, problem.traffic.indices)
        )
        columns["sends_to"] = pa.LargeListArray.from_arrays(offsets, targets)
        columns["bytes_per_second"] = pa.LargeListArray.from_arrays(offsets, pa.array(problem.traffic.data))
    plain = _plain(problem)
    of_bins = {name: plain[name] for name in _OF_BINS if name in plain}
    return pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(of_bins).encode()})


def _fixed(values: Any) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _from_parquet(path: Path) -> dict[str, Any]:
    table = pq.read_table(path).combine_chunks()
    metadata = (table.schema.metadata or {}).get(_METADATA)
    if metadata is None:
        raise PlanningError("its schema has no metadata 'dask_elastic' with the bins; write it with save().")
    found: dict[str, Any] = json.loads(metadata)
    traffic = {}
    for name in table.column_names:
        column = table[name]
        if column.null_count:
            raise PlanningError(f"column {name!r} has nulls.")
        if name in ("sends_to", "bytes_per_second"):
            traffic[name] = column
        elif pa.types.is_fixed_size_list(column.type):
            width = column.type.list_size
            values = np.asarray(column.combine_chunks().flatten()).reshape(len(column), width)
            found[name] = values.T if name == "history" else values
        else:
            found[name] = column.to_numpy()
    if traffic:
        found["traffic"] = _pairs(traffic)
    return found


def _pairs(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return traffic in the form of JSON."""
    if len(columns) != 2:
        raise PlanningError(f"it has {next(iter(columns))!r} alone: sends_to and bytes_per_second belong together.")
    targets, rates = (columns[name].combine_chunks() for name in ("sends_to", "bytes_per_second"))
    counts = np.asarray(targets.value_lengths())
    if (counts != np.asarray(rates.value_lengths())).any():
        raise PlanningError("sends_to and bytes_per_second have lists of different lengths.")
    ends = (np.repeat(np.arange(len(counts)), counts), np.asarray(targets.flatten()), np.asarray(rates.flatten()))
    return dict(zip(_TRAFFIC, ends, strict=True))
