"""Sets of shards as text, for files that people read too."""

from __future__ import annotations

from collections.abc import Iterable


def to_text(shards: Iterable[int]) -> str:
    """Return a set of shards as ranges.

    Parameters
    ----------
    shards : iterable of int
        Numbers of shards.

    Returns
    -------
    str
        Ascending ranges, empty for no shards.

    Examples
    --------
    >>> to_text({0, 1, 2, 5, 7, 8})
    '0-2 5 7-8'
    """
    ranges: list[list[int]] = []
    for shard in sorted(shards):
        if ranges and ranges[-1][1] == shard - 1:
            ranges[-1][1] = shard
        else:
            ranges.append([shard, shard])
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def from_text(text: str) -> frozenset[int]:
    """Return the set that `to_text` wrote.

    Parameters
    ----------
    text : str
        Ranges.

    Returns
    -------
    frozenset of int
        Numbers of shards.

    Examples
    --------
    >>> sorted(from_text("0-2 5"))
    [0, 1, 2, 5]
    """
    found: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
