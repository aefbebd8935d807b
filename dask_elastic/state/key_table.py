"""Exact lookup from keys to slots; a key is a pair of independent 64-bit hashes, `hash` and `check`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dask_elastic.state.index import DirectIndex, KeyIndex, Slots, Words, make_index
from dask_elastic.vocab.batch import FEW_ROWS

MakeIndex = Callable[[], KeyIndex]


class Identity(Protocol):
    """The two hashes of each slot's key."""

    hashes: Words
    checks: Words


_COUNTING: Slots = np.arange(FEW_ROWS)
_COUNTING.flags.writeable = False


class KeyTable:
    """An index from keys to slots that verifies each hit against the slot's identity.

    Parameters
    ----------
    make_index : callable
        Makes the index from single hashes to slots.

    Notes
    -----
    Two keys are equal if and only if their hashes and their checks are. A key whose hash another key occupies is
    inserted under a hash derived from both of its hashes, repeatedly until one is free.
    """

    def __init__(self, make_index: MakeIndex = make_index) -> None:
        self._index = make_index()
        self._derived = False

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """The approximate memory, in bytes."""
        return self._index.nbytes

    def find(self, hashes: Words, checks: Words | None, identity: Identity, verify: bool) -> Slots:
        """Return each key's slot, or -1; pass `verify=False` only if all checks, stored and given, are zero.

        Parameters
        ----------
        hashes, checks : ndarray of uint64
            Both hashes of each key; no checks if all are zero.
        identity : Identity
            The hashes and checks of all slots.
        verify : bool
            Whether to compare the keys with those of the slots.

        Returns
        -------
        ndarray of intp
            One slot per key.
        """
        slots = self._index.lookup(hashes)
        if not verify or len(self._index) == 0:
            return slots
        wrong = self._differs(slots, hashes, 0 if checks is None else checks, identity)
        if np.count_nonzero(wrong):
            checks = np.zeros_like(hashes) if checks is None else checks
            self._find_derived(slots, np.flatnonzero(wrong), hashes, checks, identity)
        return slots

    def _differs(self, slots: Slots, hashes: Words, checks: Words | int, identity: Identity) -> npt.NDArray[np.bool_]:
        wrong: npt.NDArray[np.bool_] = identity.checks.take(slots) != checks
        if self._derived:
            wrong |= identity.hashes.take(slots) != hashes
        if np.count_nonzero(wrong):
            wrong &= slots >= 0
        return wrong

    def _find_derived(self, slots: Slots, rows: Slots, hashes: Words, checks: Words, identity: Identity) -> None:
        probes = hashes[rows]
        while len(rows):
            probes = derived(probes, checks[rows])
            found = self._index.lookup(probes)
            slots[rows] = found
            wrong = self._differs(found, hashes[rows], checks[rows], identity)
            rows, probes = rows[wrong], probes[wrong]

    def add(self, hashes: Words, checks: Words, slots: Slots) -> None:
        """Insert distinct keys, none of which `find` returns a slot for.

        Parameters
        ----------
        hashes, checks : ndarray of uint64
            Both hashes of each key.
        slots : ndarray of intp
            Their slots.
        """
        probes = hashes
        while len(slots):
            distinct, first = _distinct(probes)
            free = self._index.lookup(distinct) < 0
            placed = first[free]
            self._index.insert(distinct[free], slots[placed])
            if len(placed) == len(slots):
                return
            self._derived = True
            occupied = np.ones(len(slots), dtype=np.bool_)
            occupied[placed] = False
            checks, slots = checks[occupied], slots[occupied]
            probes = derived(probes[occupied], checks)


def key_cache(make_index: MakeIndex) -> KeyTable:
    """Return a table for the large batches of one task; such a table finds recent keys faster."""
    return KeyTable(lambda: DirectIndex(make_index()))


def _distinct(hashes: Words) -> tuple[Words, Slots]:
    if (hashes[1:] > hashes[:-1]).all():
        return hashes, np.arange(len(hashes))
    return np.unique(hashes, return_index=True)


def derived(probes: Words, checks: Words) -> Words:
    """Return the next hashes to try for keys whose hashes in `probes` other keys occupy."""
    words = (probes ^ checks) + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _opens(words: Words, order: Slots) -> npt.NDArray[np.bool_]:
    """Return where sorted words differ from the ones before."""
    ordered = words[order]
    opens = np.ones(len(order), dtype=np.bool_)
    opens[1:] = ordered[1:] != ordered[:-1]
    return opens


def distinct_keys(hashes: Words, checks: Words | None) -> tuple[Slots, Slots]:
    """Group rows by key: return one row of each distinct key, in hash order, and each row's key number.

    Parameters
    ----------
    hashes, checks : ndarray of uint64
        Both hashes of each row; no checks if all are zero.

    Returns
    -------
    first : ndarray of intp
        One row of each distinct key, in the order of hashes.
    ordinals : ndarray of intp
        For each row, the position of its key in `first`.

    Examples
    --------
    >>> hashes = np.array([5, 5, 5], dtype=np.uint64)
    >>> first, ordinals = distinct_keys(hashes, np.array([1, 2, 1], dtype=np.uint64))
    >>> first.tolist(), ordinals.tolist()
    ([0, 1], [0, 1, 0])
    """
    # NumPy sorts integers several times as fast if equal ones need not keep their order.
    order = np.argsort(hashes)
    opens = _opens(hashes, order)
    if checks is not None and not np.array_equal(opens, opens | _opens(checks, order)):
        order = np.lexsort((checks, hashes))
        opens = _opens(hashes, order) | _opens(checks, order)
    ordinals = np.empty(len(order), dtype=np.intp)
    ordinals[order] = np.cumsum(opens) - 1
    return order[opens], ordinals


def few_grouped(slots: Slots) -> tuple[Slots, Slots, Slots]:
    """Group a few rows by slot: keys in the order of their last rows, which represent them."""
    listed = slots.tolist()
    if len(set(listed)) == len(listed):
        rows = _COUNTING[: len(listed)]
        return slots, rows, rows
    last: dict[int, int] = {}
    for row, slot in enumerate(listed):
        # Removed first: a dict keeps the place at which a key was inserted.
        last.pop(slot, None)
        last[slot] = row
    number = {slot: ordinal for ordinal, slot in enumerate(last)}
    return np.array([*last]), np.array([number[slot] for slot in listed]), np.array([*last.values()])


def sorted_groups(slots: Slots) -> tuple[Slots, Slots, Slots]:
    """Group rows by slot without an array over all slots, which may not fit in memory; in order if no slot repeats."""
    distinct, first, ordinals = np.unique(slots, return_index=True, return_inverse=True)
    if len(distinct) < len(slots):
        return distinct, ordinals, first
    rows = np.arange(len(slots))
    return slots, rows, rows
