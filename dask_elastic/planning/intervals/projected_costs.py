"""Projected costs of partitionings: a table that is computed once, saved, and read at every migration.

Goal
    The projected cost of a partitioning, by its number of nodes and the lengths of its intervals.
Heuristic
    None here; `dask_elastic.planning.intervals.value_iteration` computes the table.
Not done
    Partitionings beyond the load limit of the table: reading one is an error.

Notes
-----
State migration (Ding et al.), section 5.2: "we store and index these costs". By Lemma 5.2 the cost depends on
the partitioning only, not on the nodes of the intervals. Errata 4 and 6 define the costs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dask_elastic.planning.checked_arrays import Floats
from dask_elastic.planning.intervals.partitionings import Partitionings
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_array

_ABOUT = b"dask_elastic.projected_costs"
SCHEMA = pa.schema(
    [
        pa.field("nodes", pa.int32(), nullable=False),
        pa.field("tasks_per_interval", pa.list_(pa.field("tasks", pa.int32(), nullable=False)), nullable=False),
        pa.field("cost", pa.float64(), nullable=False),
    ]
)
"""The columns of a saved table, one row per partitioning. Its parameters are in the metadata."""


@dataclass(frozen=True, eq=False)
class ProjectedGroup:
    """The projected costs of partitionings into the same number of non-empty intervals.

    Parameters
    ----------
    nodes : int
        The number of nodes; more than intervals if some have no task.
    partitionings : Partitionings
        The partitionings.
    costs : array of float
        The projected cost of each.
    """

    nodes: int
    partitionings: Partitionings
    costs: Floats

    def __post_init__(self) -> None:
        if self.costs.shape != (len(self.partitionings),) or not np.isfinite(self.costs).all():
            raise PlanningError(
                f"costs for {self.nodes} nodes have shape {self.costs.shape}: give a finite number for each of "
                f"{len(self.partitionings)} partitionings."
            )


@dataclass(frozen=True, eq=False)
class ProjectedCosts:
    """The projected cost of every partitioning, and the parameters of the projection.

    Parameters
    ----------
    tasks : int
        The number of tasks.
    tau : float
        How far a node could exceed the mean load, as a share of it.
    discount : float
        γ, the weight of a cost one migration later.
    allow_empty : bool
        Whether nodes may be left without tasks.
    groups : tuple of ProjectedGroup
        The partitionings and their costs, by number of nodes.

    Raises
    ------
    PlanningError
        If the parts disagree.

    Notes
    -----
    State migration, Definition 5.3 and Figure 9.

    Examples
    --------
    >>> found = Partitionings(np.array([[0, 1, 3], [0, 2, 3]]))
    >>> costs = ProjectedCosts(3, 0.5, 0.8, False, (ProjectedGroup(2, found, np.array([1.5, 2.5])),))
    >>> costs.cost([2, 1])
    2.5
    """

    tasks: int
    tau: float
    discount: float
    allow_empty: bool
    groups: tuple[ProjectedGroup, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1:
            raise PlanningError(f"discount is {self.discount!r}: give 0 or more, and less than 1.")
        for group in self.groups:
            ends = group.partitionings.bounds[:, -1]
            if len(ends) and ends[0] != self.tasks:
                raise PlanningError(
                    f"partitionings for {group.nodes} nodes end at task {int(ends[0])}: there are {self.tasks}."
                )

    def __len__(self) -> int:
        return sum(len(group.partitionings) for group in self.groups)

    @property
    def node_counts(self) -> tuple[int, ...]:
        """The numbers of nodes with projected costs."""
        return tuple(sorted({group.nodes for group in self.groups}))

    def of_nodes(self, nodes: int) -> tuple[ProjectedGroup, ...]:
        """Return the partitionings for a number of nodes, or raise if there are none."""
        found = tuple(group for group in self.groups if group.nodes == nodes)
        if not found:
            raise PlanningError(
                f"nothing is projected for {nodes} nodes, only for {', '.join(map(str, self.node_counts))}: compute "
                "costs with a matrix that contains this number."
            )
        return found

    def cost(self, tasks_per_interval: Sequence[int]) -> float:
        """Return the projected cost of one partitioning.

        Parameters
        ----------
        tasks_per_interval : sequence of int
            The lengths of the intervals in the order of their tasks, one for each node; 0 for a node without tasks,
            anywhere.

        Returns
        -------
        float
            In the unit of the state.

        Raises
        ------
        PlanningError
            If the table does not contain it: the number of nodes does not occur, or the load limit forbids it.
        """
        given = as_array("tasks_per_interval", tasks_per_interval)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise PlanningError(f"tasks_per_interval is {tasks_per_interval!r}: give the lengths of intervals.")
        lengths: list[int] = given.tolist()
        if min(lengths, default=-1) < 0 or sum(lengths) != self.tasks:
            raise PlanningError(f"tasks_per_interval is {lengths}: give lengths that sum to {self.tasks} tasks.")
        groups = self.of_nodes(len(lengths))
        used = [length for length in lengths if length]
        bounds = np.append(0, np.cumsum(used))
        for group in groups:
            if group.partitionings.count == len(used):
                at = np.flatnonzero((group.partitionings.bounds == bounds).all(axis=1))
                if at.size:
                    return float(group.costs[at[0]])
        empty = "" if self.allow_empty or len(used) == len(lengths) else " Empty intervals were not allowed."
        raise PlanningError(
            f"nothing is projected for intervals of {lengths} tasks: with tau {self.tau!r} they exceed the load limit."
            + empty
        )

    def save(self, path: str | Path) -> None:
        """Write the table to a Parquet file.

        Parameters
        ----------
        path : str or Path
            The file, which is overwritten.
        """
        about = {"tasks": self.tasks, "tau": self.tau, "discount": self.discount, "allow_empty": self.allow_empty}
        parts = [_table(group) for group in self.groups]
        table = pa.concat_tables(parts) if parts else SCHEMA.empty_table()
        pq.write_table(table.replace_schema_metadata({_ABOUT: json.dumps(about)}), path)

    @classmethod
    def load(cls, path: str | Path) -> ProjectedCosts:
        """Read a saved table.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        ProjectedCosts
            The saved table.

        Raises
        ------
        PlanningError
            If the file holds no projected costs.
        """
        wrong = f"{str(path)!r} holds no projected costs: give a file that ProjectedCosts.save wrote."
        try:
            table = pq.read_table(path)
        except pa.ArrowInvalid as error:
            raise PlanningError(wrong) from error
        about = (table.schema.metadata or {}).get(_ABOUT)
        if about is None or table.schema.names != SCHEMA.names:
            raise PlanningError(wrong)
        return cls(groups=_groups(table), **json.loads(about))


def _table(group: ProjectedGroup) -> pa.Table:
    found = group.partitionings
    offsets = np.arange(len(found) + 1, dtype=np.int32) * found.count
    lengths = pa.ListArray.from_arrays(offsets, pa.array(found.lengths.ravel().astype(np.int32)))
    columns = [pa.array(np.full(len(found), group.nodes, dtype=np.int32)), lengths, pa.array(group.costs)]
    return pa.table([column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _groups(table: pa.Table) -> tuple[ProjectedGroup, ...]:
    table = table.combine_chunks()
    nodes, costs = table["nodes"].to_numpy(), table["cost"].to_numpy()
    counts = table["tasks_per_interval"].combine_chunks().value_lengths().to_numpy()
    groups = []
    change = np.flatnonzero((np.diff(nodes) != 0) | (np.diff(counts) != 0)) + 1
    for part in np.split(np.arange(len(nodes)), change):
        if part.size:
            lengths = table["tasks_per_interval"].slice(int(part[0]), len(part)).combine_chunks().flatten().to_numpy()
            bounds = np.zeros((len(part), int(counts[part[0]]) + 1), dtype=np.int64)
            bounds[:, 1:] = np.cumsum(lengths.reshape(len(part), -1), axis=1)
            groups.append(ProjectedGroup(int(nodes[part[0]]), Partitionings(bounds), costs[part].copy()))
    return tuple(groups)
