"""The files from which an executor's state is restored, and which shards the next one contains in full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.vocab.errors import CheckpointError

FULL = -1
"""In `ChainLink.contents`: the file contains the whole state of the shard."""
MOST_FILES = 32
"""The most files from which an executor is restored."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChainLink:
    """What one cut of an executor contains of each shard.

    Parameters
    ----------
    number : int
        The number of the checkpoint.
    contents : tuple of int
        Per shard: `FULL`, or the number of keys that changed since the previous cut, deleted ones included.
    file : FileRef or None
        The file, once it is written.
    failed : bool
        Whether the file could not be written, so that its changes are lost.
    """

    number: int
    contents: tuple[int, ...]
    file: FileRef | None = None
    failed: bool = False

    @cached_property
    def counts(self) -> Counts:
        """The contents as an array: all tasks of an executor wait while the next cut is chosen."""
        return np.array(self.contents)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChainLink, (self.number, self.contents, self.file, self.failed)

    @property
    def settled(self) -> bool:
        """Whether the file was written, or could not be."""
        return self.failed or self.file is not None

    @property
    def full(self) -> frozenset[int]:
        """The shards that it contains in full."""
        return frozenset(shard for shard, rows in enumerate(self.contents) if rows == FULL)


@dataclass(frozen=True)
class Chain:
    """The cuts from which the state of one executor is restored, oldest first; a value.

    Parameters
    ----------
    shards : int
        The number of shards of the executor.
    links : tuple of ChainLink
        Cuts that are needed, those whose files are still being written included.
    most : int
        The most files that it may need.

    Notes
    -----
    A shard is written in full when its changes since its last full copy, the new ones included, exceed its live keys.
    The copy then costs less than those changes did, so at most twice as many rows are written as changed. A file is
    needed until each shard in it was written in full later. To bound their number, some shards of the oldest file are
    written in full as soon as half of `most` files are needed: few at a time, so that no cut is much larger than the
    others, and each shard at most once per `most / 2` cuts.

    Examples
    --------
    Two shards with 10 live keys each; in the second cut 2 keys of shard 1 changed:

    >>> chain = Chain(2).cut(1, [10, 10], [10, 10])
    >>> chain.full(1)
    frozenset({0, 1})
    >>> chain = chain.written(1, FileRef("1", 500, "crc32:0", 20)).cut(2, [0, 2], [10, 10])
    >>> chain.full(2), [file.path for file in chain.at(1).files]
    (frozenset(), ['1'])
    >>> [file.path for file in chain.written(2, FileRef("2", 80, "crc32:0", 2)).at(2).files]
    ['1', '2']
    """

    shards: int
    links: tuple[ChainLink, ...] = ()
    most: int = MOST_FILES

    @classmethod
    def without_files(cls, shards: int, most: int = MOST_FILES) -> Chain:
        """Return the chain of an executor that has state of which no file can be used: the next cut writes all of it.

        Parameters
        ----------
        shards : int
            The number of shards.
        most : int, optional
            The most files that the chain may need.

        Returns
        -------
        Chain
            For state that was restored from files of another number of executors.
        """
        return cls(shards, (ChainLink(0, (FULL,) * shards, failed=True),), most)

    @property
    def files(self) -> tuple[FileRef, ...]:
        """The files, oldest first, those of cuts that are still being written left out."""
        return tuple(link.file for link in self.links if link.file is not None)

    def due(self, changed: Sequence[int] | Counts, live: Sequence[int] | Counts) -> frozenset[int]:
        """Return the shards of which the next cut contains the whole state.

        Parameters
        ----------
        changed : sequence of int
            Per shard, how many keys changed since the previous cut; deleted ones count.
        live : sequence of int
            Per shard, how many keys have state.

        Returns
        -------
        frozenset of int
            The shards. Of all others the cut contains the changes.
        """
        new, keys = _counts(changed, self.shards), _counts(live, self.shards)
        due = (new > 0) & ((new >= keys) | (self._changes_since_full() + new > keys))
        due |= self._lost()
        # An idle executor writes nothing, whatever its chain needs.
        if new.any() or due.any():
            due |= self._forced(due)
        return frozenset(np.flatnonzero(due).tolist())

    def cut(self, number: int, changed: Sequence[int] | Counts, live: Sequence[int] | Counts) -> Chain:
        """Return the chain after a cut of which no file is written yet.

        Parameters
        ----------
        number : int
            The number of the checkpoint, higher than all before.
        changed, live : sequence of int
            As for `due`.

        Returns
        -------
        Chain
            With one more link, which says what to write; the same chain if there is nothing to write.

        Raises
        ------
        CheckpointError
            When the number is not higher than those before.
        """
        if self.links and number <= self.links[-1].number:
            raise CheckpointError(f"cut {number} follows cut {self.links[-1].number}: numbers must rise")
        contents = _counts(changed, self.shards).copy()
        contents[list(self.due(changed, live))] = FULL
        if not contents.any():
            return self
        return replace(self, links=(*self.links, ChainLink(number, tuple(contents.tolist()))))

    def is_cut(self, number: int) -> bool:
        """Return whether a cut has something to write; see `cut`."""
        return any(link.number == number for link in self.links)

    def full(self, number: int) -> frozenset[int]:
        """Return the shards that a cut contains in full; empty if it has nothing to write."""
        return next((link.full for link in self.links if link.number == number), frozenset())

    def written(self, number: int, file: FileRef) -> Chain:
        """Return the chain after the file of a cut was written.

        Parameters
        ----------
        number : int
            The number of the cut.
        file : FileRef
            Its file.

        Returns
        -------
        Chain
            Without the links that are no longer needed.
        """
        return self._settled(number, file=file)

    def failed(self, number: int) -> Chain:
        """Return the chain after the file of a cut could not be written, or was given up.

        Parameters
        ----------
        number : int
            The number of the cut.

        Returns
        -------
        Chain
            The next cut contains all shards of the failed one in full, since their changes are no longer marked. The
            same chain if the file was written before.
        """
        return self._settled(number, failed=True)

    def abandoned(self) -> Chain:
        """Return the chain after all files that are not written were given up; see `failed`."""
        chain = self
        for link in self.links:
            if not link.settled:
                chain = chain.failed(link.number)
        return chain

    def at(self, number: int) -> Chain:
        """Return the chain from which a checkpoint restores this executor, for its manifest.

        Parameters
        ----------
        number : int
            The number of the checkpoint.

        Returns
        -------
        Chain
            Only links up to the number, all of them written.

        Raises
        ------
        CheckpointError
            When a file is not written yet, a failed one is not replaced, or a later cut is settled: the checkpoint
            must be given up.
        """
        if any(link.number > number and link.settled for link in self.links):
            raise CheckpointError(f"checkpoint {number} is given up: a later cut is settled already")
        links = _needed([link for link in self.links if link.number <= number])
        for link in links:
            if link.file is None:
                what = "could not be written" if link.failed else "is not written yet"
                raise CheckpointError(f"checkpoint {number} needs the changes of cut {link.number}, which {what}")
        return replace(self, links=tuple(links))

    def _settled(self, number: int, **outcome: Any) -> Chain:
        links = [
            replace(link, **outcome) if link.number == number and not link.settled else link for link in self.links
        ]
        return replace(self, links=tuple(_without_repeated_losses(_needed(links))))

    def _changes_since_full(self) -> Counts:
        since = np.zeros(self.shards, np.int64)
        for link in self.links:
            since = np.where(link.counts == FULL, 0, since + link.counts)
        return since

    def _lost(self) -> npt.NDArray[np.bool_]:
        """Return the shards that a failed link contained and no later one contains in full."""
        lost = np.zeros(self.shards, np.bool_)
        for link in self.links:
            lost = lost | (link.counts != 0) if link.failed else lost & (link.counts != FULL)
        return lost

    def _forced(self, due: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return shards of the oldest file to write in full, so that the file is no longer needed soon enough."""
        forced = np.zeros(self.shards, np.bool_)
        if 2 * len(self.links) < self.most:
            return forced
        holding = self.links[0].counts != 0
        for link in self.links[1:]:
            holding &= link.counts != FULL
        left = np.flatnonzero(holding & ~due)
        cuts_left = max(1, self.most - len(self.links))
        forced[left[: -(-len(left) // cuts_left)]] = True
        return forced


def _needed(links: Iterable[ChainLink]) -> list[ChainLink]:
    """Return the links without those whose shards are all in full in later files that are written."""
    kept: list[ChainLink] = []
    covered: npt.NDArray[np.bool_] | None = None
    for link in reversed(list(links)):
        if covered is None:
            covered = np.zeros(len(link.contents), np.bool_)
        if ((link.counts != 0) & ~covered).any():
            kept.append(link)
        if link.file is not None:
            covered = covered | (link.counts == FULL)
    return kept[::-1]


def _without_repeated_losses(links: list[ChainLink]) -> list[ChainLink]:
    """Return the links with only the last of several failed ones in a row, so that failures in a row use no memory."""
    return [
        link
        for link, following in zip_longest(links, links[1:])
        if not (link.failed and following is not None and following.failed and _contains(following, link))
    ]


def _contains(later: ChainLink, earlier: ChainLink) -> bool:
    return not ((earlier.counts != 0) & (later.counts == 0)).any()


def _counts(values: Sequence[int] | Counts, shards: int) -> Counts:
    counts = np.asarray(values, np.int64)
    if counts.shape != (shards,):
        raise ValueError(f"{counts.size} counts for {shards} shards")
    return counts
