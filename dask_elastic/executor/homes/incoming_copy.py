"""The copy of an executor's state at its next home, before the executor is there."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.executor.homes.outgoing_copy import CopiedRows
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.vocab.errors import ProtocolError


class IncomingCopy:
    """Installs the portions of an `OutgoingCopy`, each once and in order, in a store that no task uses yet.

    Parameters
    ----------
    number : int
        The number of the copy.
    component : str
        The executor's component.
    store : PrimaryState
        A store without state.

    Attributes
    ----------
    portions : int
        How many were installed.
    """

    def __init__(self, number: int, component: str, store: PrimaryState):
        self.number = number
        self.portions = 0
        self._store = store
        self._stores = store.stores(component)

    def install(self, number: int, position: int, portion: Iterable[CopiedRows]) -> None:
        """Install a portion.

        Parameters
        ----------
        number : int
            The number of the copy.
        position : int
            How many portions of it are before this one.
        portion : iterable of CopiedRows
            The portion.

        Raises
        ------
        ProtocolError
            If it is of another copy, or does not follow the one before; nothing is installed.
        """
        self._check(number, position)
        for part in portion:
            self._stores[part.operator].install(part.rows, dirty=part.changed)
        self.portions += 1

    def complete(self, number: int, portions: int) -> PrimaryState:
        """Return the store, once it has all that the executor's home has copied.

        Raises
        ------
        ProtocolError
            If it is of another copy, or a portion is missing.
        """
        self._check(number, portions)
        return self._store

    def _check(self, number: int, portions: int) -> None:
        if (number, portions) != (self.number, self.portions):
            raise ProtocolError(
                f"portion {portions} of copy {number} does not follow portion {self.portions} of copy {self.number}"
            )
