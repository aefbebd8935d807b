"""The first tier of routing where key groups change executor: an immutable, versioned table from group to executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.vocab.errors import MoveRefused
from dask_elastic.vocab.gather import take_rows


@dataclass(frozen=True, eq=False)
class GroupTable:
    """The executor of each key group of one operator, and the home of each executor.

    A table is immutable: each change returns the next version, so that batches can be split against it without a lock.

    Parameters
    ----------
    version : int
        The number of changes since the job began.
    owners : numpy.ndarray
        The executor of each group, ``uint16``.
    homes : tuple of int
        The node where the receiver of each executor is.
    marked : tuple of int
        The executors that get an end mark from each upstream instance when it begins to use this table.

    Notes
    -----
    The group of a hash h is ``h mod G``, with G groups. In the resource-centric paradigm an executor has a shard for
    each group of its operator, whether it owns it or not: shard and group have the same number in all executors.

    Examples
    --------
    >>> table = GroupTable.initial(groups=4, homes=[0, 2])
    >>> table.owners.tolist(), table.owned_by(1)
    ([0, 0, 1, 1], (2, 3))
    >>> moved = table.moved({0: 1, 3: 0})
    >>> moved.version, moved.owners.tolist(), moved.marks_since(table)
    (1, [1, 0, 1, 0], [MarkDue(executor=0, home=0, version=1), MarkDue(executor=1, home=2, version=1)])
    """

    version: int
    owners: np.ndarray
    homes: tuple[int, ...]
    marked: tuple[int, ...] = ()

    @classmethod
    def initial(cls, groups: int, homes: Iterable[int]) -> GroupTable:
        """Return the first table, in which each executor owns a contiguous range of groups.

        Parameters
        ----------
        groups : int
            The number of groups, G.
        homes : iterable of int
            The home of each executor.

        Returns
        -------
        GroupTable
            The table of version 0.
        """
        nodes = tuple(homes)
        return cls(0, (np.arange(groups) * len(nodes) // groups).astype(np.uint16), nodes)

    @classmethod
    def of_owners(cls, owners: Iterable[int], homes: Iterable[int]) -> GroupTable:
        """Return the first table of a job whose groups have given executors.

        Parameters
        ----------
        owners : iterable of int
            The executor of each group.
        homes : iterable of int
            The home of each executor.

        Returns
        -------
        GroupTable
            The table of version 0.

        Examples
        --------
        >>> GroupTable.of_owners([1, 0, 1], homes=[0, 2]).owned_by(1)
        (0, 2)
        """
        return cls(0, np.array([*owners], dtype=np.uint16), tuple(homes))

    @classmethod
    def of_parts(cls, groups: int, homes: Iterable[int], parts: Mapping[int, Iterable[int]]) -> GroupTable:
        """Return the first table of a job that begins from a checkpoint.

        Parameters
        ----------
        groups : int
            The number of groups, G.
        homes : iterable of int
            The home of each executor.
        parts : mapping of int to iterable of int
            The groups that each executor owned at the checkpoint.

        Returns
        -------
        GroupTable
            The table of version 0; groups that no executor owned are where `initial` has them.
        """
        table = cls.initial(groups, homes)
        for executor, owned in parts.items():
            table.owners[[*owned]] = executor
        return table

    @classmethod
    def spread(cls, groups: int, homes: Iterable[int], parts: Mapping[int, Iterable[int]]) -> GroupTable:
        """Return the first table of a job that continues with another number of executors.

        Parameters
        ----------
        groups : int
            The number of groups, G.
        homes : iterable of int
            The home of each executor.
        parts : mapping of int to iterable of int
            The groups that each executor owned at the checkpoint.

        Returns
        -------
        GroupTable
            The table of version 0: all executors have equally many groups, up to one. Those that were there before keep
            as many of theirs as that allows.

        Examples
        --------
        >>> GroupTable.spread(6, [0, 0, 1], {0: [0, 1, 2, 5], 1: [3, 4]}).owners.tolist()
        [0, 0, 2, 1, 1, 2]
        """
        nodes = tuple(homes)
        own = {executor: sorted(parts.get(executor, ())) for executor in range(len(nodes))}
        least, more = divmod(groups, len(nodes))
        # Those with the most groups get one more if not all can have equally many.
        ranked = sorted(own, key=lambda executor: (-len(own[executor]), executor))
        room = {executor: least + (rank < more) for rank, executor in enumerate(ranked)}
        owners = np.full(groups, len(nodes), dtype=np.int64)
        for executor, kept in own.items():
            owners[kept[: room[executor]]] = executor
        lacking = [executor for executor in own for _ in range(room[executor] - int((owners == executor).sum()))]
        owners[owners == len(nodes)] = lacking
        return cls(0, owners.astype(np.uint16), nodes)

    @property
    def groups(self) -> int:
        """The number of groups, G."""
        return len(self.owners)

    def owned_by(self, executor: int) -> tuple[int, ...]:
        """Return the groups of an executor, ascending."""
        return tuple(np.flatnonzero(self.owners == executor).tolist())

    def check(self, moves: Mapping[int, int]) -> None:
        """Check that groups can move.

        Parameters
        ----------
        moves : mapping of int to int
            The next executor of each group that moves.

        Raises
        ------
        MoveRefused
            If there are no moves, a group or an executor does not exist, or a group is where it is to be; names it.
        """
        if not moves:
            raise MoveRefused("no group is to move")
        for group, executor in moves.items():
            if not 0 <= group < self.groups:
                raise MoveRefused(f"group {group} does not exist: the groups are 0 to {self.groups - 1}")
            if not 0 <= executor < len(self.homes):
                raise MoveRefused(
                    f"group {group} cannot move to executor {executor}: the executors are 0 to {len(self.homes) - 1}"
                )
            if self.owners[group] == executor:
                raise MoveRefused(f"group {group} belongs to executor {executor} already")

    def moved(self, moves: Mapping[int, int], mark_all: bool = False, version: int | None = None) -> GroupTable:
        """Return the next table, in which groups have other executors.

        Parameters
        ----------
        moves : mapping of int to int
            The next executor of each group that moves.
        mark_all : bool
            Whether all executors get end marks, rather than those that lose or gain groups.
        version : int, optional
            The version of the next table, if moves that were cancelled have used some.

        Returns
        -------
        GroupTable
            The next table.

        Raises
        ------
        MoveRefused
            As `check`.
        """
        self.check(moves)
        owners = self.owners.copy()
        owners[[*moves]] = [*moves.values()]
        concerned = {*moves.values(), *(int(self.owners[group]) for group in moves)}
        marked = range(len(self.homes)) if mark_all else sorted(concerned)
        return GroupTable(version or self.version + 1, owners, self.homes, tuple(marked))

    def marks_since(self, before: GroupTable) -> list[MarkDue]:
        """Return the end marks that an upstream instance owes which has used the table before this one."""
        return [MarkDue(executor, before.homes[executor], self.version) for executor in self.marked]

    def split(
        self, rows: pa.RecordBatch, hashes: np.ndarray, groups: np.ndarray
    ) -> list[tuple[int, pa.RecordBatch, np.ndarray]]:
        """Split rows among the executors; each executor's rows keep their order.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            The rows.
        hashes : numpy.ndarray
            Their key hashes, ``uint64``.
        groups : numpy.ndarray
            Their groups, see `KeySpace.shard_of`.

        Returns
        -------
        list of (int, pyarrow.RecordBatch, numpy.ndarray)
            Executor, its rows, their hashes; executors without rows are omitted.

        Examples
        --------
        >>> table = GroupTable.initial(groups=4, homes=[0, 2])
        >>> hashes = np.array([3, 0, 2], dtype=np.uint64)
        >>> parts = table.split(pa.record_batch({"x": [10, 11, 12]}), hashes, hashes % 4)
        >>> [(executor, part["x"].to_pylist()) for executor, part, _ in parts]
        [(0, [11]), (1, [10, 12])]
        """
        executors = self.owners[groups]
        counts = np.bincount(executors, minlength=len(self.homes))
        present = np.flatnonzero(counts).tolist()
        if len(present) <= 1:
            return [(executor, rows, hashes) for executor in present]
        order = np.argsort(executors, kind="stable")
        rows, hashes = take_rows(rows, order), hashes[order]
        ends = np.cumsum(counts).tolist()
        starts = {executor: ends[executor] - int(counts[executor]) for executor in present}
        return [(e, rows.slice(starts[e], ends[e] - starts[e]), hashes[starts[e] : ends[e]]) for e in present]
