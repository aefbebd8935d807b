"""Cores of executors on nodes, stored sparsely: an executor has cores on few nodes, and there may be thousands.

Notes
-----
Elasticutor, section 4.2: the matrix X of nodes × executors, of which only the entries above 0 are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Cores = NDArray[np.int64]


class CoreColumns:
    """A matrix of nodes × executors with few entries above 0.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    columns : sequence of mapping of int to int
        For each executor its cores by node, in the order of nodes and without entries of 0. They must not change.

    Examples
    --------
    >>> cores = CoreColumns(2, [{0: 1}, {0: 2, 1: 1}])
    >>> cores.matrix.tolist(), cores.totals.tolist(), cores.per_node.tolist()
    ([[1, 2], [0, 1]], [1, 3], [3, 1])
    """

    def __init__(self, nodes: int, columns: Sequence[Mapping[int, int]]):
        self.nodes = nodes
        self.columns = columns

    @classmethod
    def of(cls, matrix: Cores) -> CoreColumns:
        """Return the entries of a matrix that differ from 0.

        Parameters
        ----------
        matrix : array of int, nodes × executors
            The cores.

        Returns
        -------
        CoreColumns
            The same cores.
        """
        nodes, executors = matrix.shape
        columns: list[dict[int, int]] = [{} for _ in range(executors)]
        for entry in np.flatnonzero(matrix != 0).tolist():
            node, executor = divmod(entry, executors)
            columns[executor][node] = int(matrix[node, executor])
        return cls(nodes, columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of nodes and of executors."""
        return self.nodes, len(self.columns)

    @cached_property
    def matrix(self) -> Cores:
        """The cores as an array, nodes × executors; not to be changed."""
        matrix = np.zeros(self.shape, dtype=np.int64)
        nodes, executors, cores = self.entries
        matrix[nodes, executors] = cores
        return matrix

    @cached_property
    def entries(self) -> tuple[Cores, Cores, Cores]:
        """Nodes, executors and cores of all entries, by node and then by executor."""
        nodes, executors, cores = self._by_executor
        order = np.argsort(nodes, kind="stable")
        return nodes[order], executors[order], cores[order]

    @cached_property
    def _by_executor(self) -> tuple[Cores, Cores, Cores]:
        """Nodes, executors and cores of all entries, by executor."""
        nodes = np.array(list(chain.from_iterable(self.columns)), dtype=np.int64)
        cores = np.array(list(chain.from_iterable([column.values() for column in self.columns])), dtype=np.int64)
        lengths = np.array(list(map(len, self.columns)), dtype=np.int64)
        return nodes, np.repeat(np.arange(len(lengths)), lengths), cores

    @cached_property
    def totals(self) -> Cores:
        """Cores of each executor."""
        _, executors, cores = self._by_executor
        return np.bincount(executors, cores, len(self.columns)).astype(np.int64)

    @cached_property
    def per_node(self) -> Cores:
        """Cores of each node that executors have."""
        nodes, _, cores = self._by_executor
        return np.bincount(nodes, cores, self.nodes).astype(np.int64)

    def at(self, nodes: Cores, executors: Cores) -> Cores:
        """Return the cores of some executors on some nodes.

        Parameters
        ----------
        nodes, executors : array of int
            The positions.

        Returns
        -------
        numpy.ndarray of int
            One count for each position.
        """
        places = zip(nodes.tolist(), executors.tolist(), strict=True)
        return np.array([self.columns[executor].get(node, 0) for node, executor in places], dtype=np.int64)

    def take(self, chosen: NDArray[np.bool_]) -> CoreColumns:
        """Return the cores of some executors.

        Parameters
        ----------
        chosen : array of bool
            The executors.

        Returns
        -------
        CoreColumns
            Their cores, in the same order.
        """
        if chosen.all():
            return self
        return CoreColumns(self.nodes, [self.columns[executor] for executor in np.flatnonzero(chosen).tolist()])

    def replaced(self, others: Mapping[int, Mapping[int, int]]) -> CoreColumns:
        """Return the cores with those of some executors replaced; sums are not made anew for the others.

        Parameters
        ----------
        others : mapping of int to mapping of int to int
            The cores of these executors by node, in the order of nodes and without entries of 0.

        Returns
        -------
        CoreColumns
            All cores.
        """
        if not others:
            return self
        columns = list(self.columns)
        before = CoreColumns(self.nodes, [columns[executor] for executor in others])
        after = CoreColumns(self.nodes, list(others.values()))
        for executor, column in others.items():
            columns[executor] = column
        made = CoreColumns(self.nodes, columns)
        made.per_node = self.per_node - before.per_node + after.per_node
        made.totals = self.totals.copy()
        made.totals[list(others)] = after.totals
        return made

    def put(self, chosen: NDArray[np.bool_], others: CoreColumns) -> CoreColumns:
        """Return the cores with those of some executors replaced.

        Parameters
        ----------
        chosen : array of bool
            The executors.
        others : CoreColumns
            Their cores, in the same order.

        Returns
        -------
        CoreColumns
            All cores.
        """
        if chosen.all():
            return others
        columns = list(self.columns)
        for executor, column in zip(np.flatnonzero(chosen).tolist(), others.columns, strict=True):
            columns[executor] = column
        return CoreColumns(self.nodes, columns)


def by_node(column: Mapping[int, int]) -> dict[int, int]:
    """Return an executor's cores in the order of nodes, without entries of 0.

    Parameters
    ----------
    column : mapping of int to int
        Its cores by node.

    Returns
    -------
    dict of int to int
        The same cores.

    Examples
    --------
    >>> by_node({3: 1, 0: 2, 1: 0})
    {0: 2, 3: 1}
    """
    if len(column) > 1:
        return {node: column[node] for node in sorted(column) if column[node]}
    return {node: cores for node, cores in column.items() if cores}
