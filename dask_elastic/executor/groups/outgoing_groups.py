"""The copy of the state of key groups for their next executors, made while the groups are processed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.homes.outgoing_copy import CopiedRows, encoded, outgoing_rows
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.migration.copy_rounds import SMALL_BYTES, CopyRounds
from dask_elastic.state.outgoing_rows import AT_ONCE, Portion
from dask_elastic.vocab.identity import ExecutorId


class OutgoingGroups:
    """Copies the state of groups that are to leave an executor in portions, first all of it, then what has changed.

    Parameters
    ----------
    version : int
        The version of the first tier that the move leads to.
    loses : mapping of int to int
        The next executor of each group that is to leave.
    executor : ExecutorId
        The executor.
    store : PrimaryState
        Its state.
    at_once : int
        Rows that are copied while tasks wait, at most.
    small : int
        A round with at most so many bytes is the last one.
    clock : callable, optional
        Returns seconds; measures how many rows can be copied while tasks wait briefly, see `OutgoingRows`.

    Attributes
    ----------
    goes_on : bool
        Whether another round follows.

    Notes
    -----
    Decision 99. One thread uses it at a time; any may call `end`.
    """

    def __init__(
        self,
        version: int,
        loses: Mapping[int, int],
        executor: ExecutorId,
        store: PrimaryState,
        at_once: int = AT_ONCE,
        small: int = SMALL_BYTES,
        clock: Callable[[], float] | None = None,
    ):
        self.version = version
        self.goes_on = True
        self._source = executor.index
        self._groups = {
            target: tuple(group for group, to in loses.items() if to == target) for target in sorted({*loses.values()})
        }
        self._chosen = {target: np.isin(np.arange(store.shards), groups) for target, groups in self._groups.items()}
        self._portions = dict.fromkeys(self._groups, 0)
        self._rounds = CopyRounds(small)
        leaving = np.isin(np.arange(store.shards), [*loses])
        self._rows = outgoing_rows(executor.component, store, at_once, clock, leaving)

    def round(self) -> Iterator[tuple[int, CopiedGroups]]:
        """Yield what is not copied, once through the state, each portion with the executor that is to get it."""
        nbytes = 0
        for target, shards in self._chosen.items():
            for operator, rows in self._rows.items():
                for portion in self._encoded(target, operator, rows.sweep(shards)):
                    nbytes += portion.nbytes
                    yield target, portion
        self.goes_on = self._rounds.goes_on(nbytes)

    def rest(self, target: int) -> Iterator[CopiedGroups]:
        """Yield what is not copied of the groups for an executor, which are not processed here any more."""
        for operator, rows in self._rows.items():
            yield from self._encoded(target, operator, rows.rest(self._chosen[target]))

    def nothing(self, target: int) -> CopiedGroups:
        """Return a portion without rows that follows those of an executor."""
        return CopiedGroups(self.version, self._source, self._groups[target], self._portions[target], ())

    def end(self) -> None:
        """Copy no more; a round in progress in another thread ends."""
        self.goes_on = False
        for rows in self._rows.values():
            rows.end()

    def _encoded(self, target: int, operator: str, portions: Iterable[Portion]) -> Iterator[CopiedGroups]:
        for portion in portions:
            yield self._numbered(target, encoded(operator, portion))

    def _numbered(self, target: int, rows: tuple[CopiedRows, ...]) -> CopiedGroups:
        position = self._portions[target]
        self._portions[target] += 1
        return CopiedGroups(self.version, self._source, self._groups[target], position, rows)
