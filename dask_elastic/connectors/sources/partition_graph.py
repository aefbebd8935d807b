"""The tasks that compute the partitions of a Dask collection, each as an Arrow table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from dask_elastic.topology.tables import as_table
from dask_elastic.vocab.columns.time_zones import check_zones, zone_error
from dask_elastic.vocab.listed_arrays import listed_array, table_of_columns

_ZONES = "give the type of the times in schema=, or convert them, as with tz_localize of pandas"
"""What to do about times that are not of their column's kind."""


class PartitionGraph:
    """The tasks of a collection's partitions; pickled as a graph without the collection.

    Parameters
    ----------
    collection : dask.dataframe.DataFrame or dask.bag.Bag
        The collection.
    names : sequence of str or None
        The columns to read of a DataFrame; all by default.
    schema : Schema or None
        The types of the columns; by default as Arrow infers them.

    Attributes
    ----------
    keys : list
        The key of each partition's task.
    tasks : dict
        The tasks by key. A `Future` in place of a task stands for its result.

    Examples
    --------
    >>> import dask.bag
    >>> bag = dask.bag.from_sequence([{"n": 1}, {"n": 2}], npartitions=2)
    >>> graph = PartitionGraph(bag, None, None)
    >>> len(graph.keys), len(graph.needed(graph.keys[:1])) < len(graph.tasks)
    (2, True)
    """

    def __init__(self, collection: Any, names: Sequence[str] | None, schema: pa.Schema | None) -> None:
        self._collection = collection
        self._names = names
        self._schema = schema
        self._pickled: bytes | None = None
        self._tasks: dict[Any, Any] | None = None
        self._keys: list[Any] = []

    @property
    def keys(self) -> list[Any]:
        """The key of each partition's task, in order."""
        self._build()
        return self._keys

    @property
    def tasks(self) -> dict[Any, Any]:
        """The tasks by key."""
        self._build()
        assert self._tasks is not None, "built before"
        return self._tasks

    def _build(self) -> None:
        if self._tasks is not None:
            return
        if self._pickled is not None:
            self._tasks, self._keys = cloudpickle.loads(self._pickled)
            return
        made = self._optimized()
        self._tasks, self._keys = dict(made.__dask_graph__()), list(made.__dask_keys__())

    def _optimized(self) -> Any:
        """Return the collection of the partitions as tables."""
        import dask

        if not hasattr(self._collection, "_meta"):
            return dask.optimize(self._collection.map_partitions(bag_rows, self._schema))[0]
        # Selected before the optimisation, so that readers of files read only these columns.
        frame = self._collection if self._names is None else self._collection[list(self._names)]
        schema = self._schema
        if schema is not None:
            schema = pa.schema([schema.field(name) for name in frame.columns])
        # What the tasks return is no data frame: dask must not compare it with its meta.
        options = {"schema": schema, "meta": frame._meta, "enforce_metadata": False}
        return frame.map_partitions(frame_rows, **options).optimize()

    def __getstate__(self) -> dict[str, Any]:
        if self._pickled is None:
            self._pickled = cloudpickle.dumps((self.tasks, self.keys))
        return {"_pickled": self._pickled, "_tasks": None, "_keys": [], "_collection": None}

    def needed(self, keys: Collection[Any]) -> dict[Any, Any]:
        """Return the tasks that some tasks need, and these tasks."""
        found: dict[Any, Any] = {}
        left = list(keys)
        while left:
            key = left.pop()
            if key not in found:
                found[key] = self.tasks[key]
                left += self._needs(key)
        return found

    def shared(self) -> set[Any]:
        """Return the tasks whose results have to be kept, so that no partition computes them again.

        Returns
        -------
        set of key
            The last tasks that several partitions need, such as the barrier of a shuffle. A task before them may run
            twice: for them, and for one partition.
        """
        from dask.core import toposort

        # The first partition that needs a task, without one of the tasks to keep in between.
        owners = {key: number for number, key in enumerate(self.keys)}
        kept = set()
        for key in reversed(toposort(self.tasks, {key: self._needs(key) for key in self.tasks})):
            if key in kept or key not in owners:
                continue
            for needed in self._needs(key):
                if owners.setdefault(needed, owners[key]) != owners[key]:
                    kept.add(needed)
        return kept

    def _needs(self, key: Any) -> set[Any]:
        """Return the tasks that a task needs directly."""
        from dask.core import get_dependencies
        from distributed import Future

        # Dask takes a future in place of a task for a reference to the task.
        return set() if isinstance(self.tasks[key], Future) else set(get_dependencies(self.tasks, key))


def frame_rows(part: Any, schema: pa.Schema | None = None) -> pa.Table:
    """Return a partition of a DataFrame as a table; runs on a Dask worker."""
    if schema is not None:
        _check_frame_zones(part, schema)
        return pa.Table.from_pandas(part, schema, preserve_index=False)
    table = as_table(part)
    if table is None:
        raise TypeError(f"a partition is a {type(part).__name__}, not a data frame")
    return table.replace_schema_metadata(None)


def bag_rows(part: Any, schema: pa.Schema | None = None) -> pa.Table:
    """Return a partition of a Bag as a table with one row per item; runs on a Dask worker."""
    rows = list(part)
    for row in rows:
        if not isinstance(row, dict):
            raise TypeError(f"the item {row!r:.80} is a {type(row).__name__}; map it to a dict of columns")
    names = dict.fromkeys(name for row in rows for name in row)
    if schema is None:
        return table_of_columns({name: [row.get(name) for row in rows] for name in names})
    if unexpected := [name for name in names if name not in schema.names]:
        raise ValueError(f"items have {unexpected[0]!r}, which schema= lacks; add it, or remove it from the items")
    columns = [_column([row.get(field.name) for row in rows], field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    _check_zones(values, field)
    return listed_array(values, field.type)


def _check_zones(values: Iterable[Any], field: pa.Field) -> None:
    try:
        check_zones(values, field.type)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {field.name!r}: {error}; {_ZONES}") from error


def _check_frame_zones(part: Any, schema: pa.Schema) -> None:
    """Raise if a column of a DataFrame has times with a zone where the schema has none, or the other way round."""
    times = [field for field in schema if pa.types.is_timestamp(field.type) and field.name in part.columns]
    found = pa.Schema.from_pandas(part[[field.name for field in times]], preserve_index=False)
    for field in times:
        kind = found.field(field.name).type
        if part[field.name].dtype == object:
            _check_zones(part[field.name], field)
        elif pa.types.is_timestamp(kind) and (kind.tz is None) != (field.type.tz is None):
            wrong = zone_error(f"a {kind}", kind.tz is None, field.type)
            raise ValueError(f"column {field.name!r}: {wrong}; {_ZONES}")
