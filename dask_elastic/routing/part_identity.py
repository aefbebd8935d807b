"""Identities of several parts of one key's state, such as its partial aggregates per slice: all in the key's shard."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dask_elastic.routing.string_hashing import CHECK, HASH, Family, Words

Salts: TypeAlias = npt.NDArray[np.int64] | int
"""The number of each part; one for all if it is an int."""


def part_hashes(hashes: Words, salts: Salts, groups: int) -> Words:
    """Return the hash of a part of each key: it is in the key's group, and differs from those of other parts.

    Parameters
    ----------
    hashes : ndarray of uint64
        The keys' hashes.
    salts : ndarray of int64, or int
        The number of each part, or of all.
    groups : int
        The number of groups of the key space, G.

    Returns
    -------
    ndarray of uint64
        One hash per key.

    See Also
    --------
    part_checks : The second hash of a part.

    Notes
    -----
    Shard and executor of a hash h follow from its group, h mod G, for every number of executors that divides G. So a
    part may have any hash that equals the key's modulo G. For each salt the map from hashes to hashes is a bijection:
    with r = h mod G and q = (h - r) / G it replaces q, by an exclusive or if G is a power of two, else by a sum modulo
    the number M of complete blocks of G hashes. The hashes beyond these, fewer than G, stay.

    The constants are part of the checkpoint format.

    Examples
    --------
    >>> hashes = np.array([5, 2**63 + 1], dtype=np.uint64)
    >>> (part_hashes(hashes, 7, groups=4) % 4).tolist(), (part_hashes(hashes, 7, groups=6) % 6).tolist()
    ([1, 1], [5, 3])
    """
    mixed = _mixed(salts, HASH)
    if groups & (groups - 1) == 0:
        found: Words = hashes ^ (mixed & np.uint64(2**64 - groups))
        return found
    count = np.uint64(2**64 // groups)
    blocks = hashes // np.uint64(groups)
    rest = hashes - blocks * np.uint64(groups)
    moved = blocks + mixed % count
    moved -= np.where(moved >= count, count, np.uint64(0))
    return np.where(blocks < count, moved * np.uint64(groups) + rest, hashes)


def part_checks(checks: Words | None, salts: Salts, count: int) -> Words:
    """Return the check of a part of each key; hash and check together are the identity of the part.

    Parameters
    ----------
    checks : ndarray of uint64 or None
        The keys' checks; None if all are zero.
    salts : ndarray of int64, or int
        The number of each part, or of all.
    count : int
        The number of keys.

    Returns
    -------
    ndarray of uint64
        One check per key.

    Notes
    -----
    The salt follows from the check of a part if that of its key is zero. So no two parts share an identity if the hash
    alone identifies every key; else this is as improbable as that two keys share one.

    Examples
    --------
    >>> one, other = part_checks(None, 1, 1), part_checks(None, 2, 1)
    >>> bool(one[0] != other[0])
    True
    """
    mixed = _mixed(salts, CHECK)
    return np.broadcast_to(mixed, count) if checks is None else checks ^ mixed


def _mixed(salts: Salts, family: Family) -> Words:
    """Return one mixed word per salt; a single one, to be broadcast, for an int."""
    if isinstance(salts, int):
        return family.mix(np.array([salts], np.int64).view(np.uint64))
    if not len(salts):
        return np.empty(0, np.uint64)
    least = int(salts.min())
    span = int(salts.max()) - least + 1
    if span > len(salts):
        return family.mix(salts.view(np.uint64))
    # Mostly there are few distinct numbers: each is mixed once.
    mixed = family.mix((np.arange(span) + np.int64(least)).view(np.uint64))
    return mixed.take(salts - least)
