"""Identities of keys whose rows are routed by some of their columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dask_elastic.routing.hashing import hash_columns, hash_keys
from dask_elastic.routing.string_hashing import Words


def key_hashes(
    rows: pa.RecordBatch, keys: Sequence[str], routed_by: Sequence[str] | None = None, groups: int = 1
) -> Words:
    """Hash the key of each row, so that the hash of some key columns decides the group.

    Parameters
    ----------
    rows : RecordBatch
        The rows.
    keys : sequence of str
        The key columns.
    routed_by : sequence of str, optional
        The key columns by whose hash alone the group is chosen; None for all.
    groups : int
        The number of groups of the key space, G.

    Returns
    -------
    ndarray of uint64
        One hash per row: that of the key; or, if rows are routed by other columns, one that has the group of theirs.

    Raises
    ------
    SchemaMismatch
        If a key column is missing from the batch or occurs more than once.

    Notes
    -----
    The hash of the key loses what decides its group. Only keys of several columns are changed, which a check tells
    apart.

    Examples
    --------
    >>> rows = pa.record_batch({"area": ["n", "n", "s"], "kind": [1, 2, 1]})
    >>> found = key_hashes(rows, ["area", "kind"], ["area"], groups=256)
    >>> found[0] == found[1], found[0] % 256 == found[1] % 256 == hash_columns(rows, ["area"])[0] % 256
    (np.False_, np.True_)
    """
    hashes = hash_columns(rows, keys)
    if routed_by is None or tuple(routed_by) == tuple(keys) or groups == 1:
        return hashes
    return in_group(hashes, hash_keys([rows.column(name) for name in routed_by], routed_by), groups)


def in_group(hashes: Words, placed: Words, groups: int) -> Words:
    """Return hashes with the groups of other hashes.

    Parameters
    ----------
    hashes : ndarray of uint64
        The hashes.
    placed : ndarray of uint64
        As many hashes, whose groups the result has.
    groups : int
        The number of groups, above 1.

    Returns
    -------
    ndarray of uint64
        For each hash, the number of the group in the same block of `groups` numbers.

    Examples
    --------
    >>> in_group(np.array([25, 31], np.uint64), np.array([3, 103], np.uint64), 10).tolist()
    [23, 33]
    """
    size = np.uint64(groups)
    # The last numbers below 2**64 may be no whole block of groups.
    blocks = np.minimum(hashes // size, np.uint64(2**64 // groups - 1))
    found: Words = blocks * size + placed % size
    return found
