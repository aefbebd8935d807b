"""The copy of an executor's state for its next home, made while the executor goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.migration.copy_pieces import CopyPieces
from dask_elastic.state.codec import encode
from dask_elastic.state.outgoing_rows import AT_ONCE, Chosen, OutgoingRows, Portion


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Encoded rows of one compute.

    Parameters
    ----------
    operator : str
        The compute.
    changed : bool
        Whether they have changed since the last checkpoint.
    rows : RecordBatch
        The rows, deleted ones included; see `codec.encode`.
    """

    operator: str
    changed: bool
    rows: pa.RecordBatch


Portions = Iterator[tuple[CopiedRows, ...]]


class OutgoingCopy:
    """Copies the state of an executor in portions of a few MiB, first all of it, then what has changed since.

    Parameters
    ----------
    number : int
        Identifies the copy at the next home: higher than that of each earlier one.
    target : int
        The node of the next home.
    component : str
        The executor's component.
    store : PrimaryState
        Its state.
    at_once : int
        Rows that are copied while tasks wait, at most.
    clock : callable, optional
        Returns seconds; measures how many rows can be copied while tasks wait briefly, see `OutgoingRows`.

    Attributes
    ----------
    portions : int
        How many portions were made.
    nbytes : int
        Their bytes.
    """

    def __init__(
        self,
        number: int,
        target: int,
        component: str,
        store: PrimaryState,
        at_once: int = AT_ONCE,
        clock: Callable[[], float] | None = None,
    ):
        self.number = number
        self.target = target
        self.portions = 0
        self.nbytes = 0
        self._rows = outgoing_rows(component, store, at_once, clock)

    def round(self) -> Portions:
        """Yield what is not copied, once through the state, while tasks go on."""
        for operator, rows in self._rows.items():
            yield from self._encoded(operator, rows.sweep())

    def rest(self) -> Portions:
        """Yield what is not copied of the state, which does not change any more."""
        for operator, rows in self._rows.items():
            yield from self._encoded(operator, rows.rest())

    def end(self) -> None:
        """Copy no more."""
        for rows in self._rows.values():
            rows.end()

    def _encoded(self, operator: str, portions: Iterable[Portion]) -> Portions:
        for portion in portions:
            parts = encoded(operator, portion)
            self.portions += 1
            self.nbytes += sum(part.rows.nbytes for part in parts)
            yield parts


def outgoing_rows(
    component: str,
    store: PrimaryState,
    at_once: int,
    clock: Callable[[], float] | None,
    shards: Chosen | None = None,
) -> dict[str, OutgoingRows]:
    """Return the rows to copy of each compute of a component; see `OutgoingCopy` and `OutgoingRows`."""
    return {
        name: OutgoingRows(part, at_once, shards=shards)
        if clock is None
        else OutgoingRows(part, at_once, CopyPieces(at_once), clock, shards)
        for name, part in store.stores(component).items()
    }


def encoded(operator: str, portion: Portion) -> tuple[CopiedRows, ...]:
    """Return a portion of the state of a compute, encoded."""
    parts = [CopiedRows(operator, bool(n), encode(rows)) for n, rows in enumerate(portion) if len(rows.hashes)]
    # Without rows only its schema.
    return tuple(parts) or (CopiedRows(operator, False, encode(portion.unchanged)),)
