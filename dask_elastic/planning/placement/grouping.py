"""Groupings: route each tuple to an instance by its key alone, without a plan.

Goal
    The baselines of planners, as functions from the hashes of many keys to instances: partial key
    grouping (PKG) with two choices and with more for hot keys, a universal hash function (UHLB), and a ring.
Heuristic
    PKG sends a tuple to the less loaded of its key's instances. It reads the loads once per few tuples, so that NumPy
    handles these together.
Not done
    Merging partial states that PKG leaves on several instances; `expansion` measures their number.
    Placements of key groups by hashing are `universal_hash` and `consistent_hash` beside this module.

Notes
-----
ELB/CLB, sections 1.1 and 5 (PKG and UHLB); Enorm, sections 3.2 (two choices, and more where they are not enough) and
4.4.2 (key expansion); State migration, section 6 (consistent hashing; ERRATA, State migration 5: a ring with virtual
nodes). None of them prints an algorithm for PKG or the load from which a key is hot.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.planning.placement.consistent_hash import hashed
from dask_elastic.planning.placement.problem import Ints
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_array, as_seed, is_number, is_whole

_PRIME = 2**31 - 1
_TRACKED_PER_HOT_KEY = 10

_MOST_POINTS = 1 << 24
"""The most instances, and points of a ring: arrays have an entry for each."""

_MOST_CHOICES = 1 << 12
"""The most instances of a key: arrays have as many entries for each tuple."""


def universal_hash(hashes: ArrayLike, instances: int, seed: int = 0, substreams: int = 4096) -> Ints:
    """Return the instance of each key by a function drawn from a 2-universal family (UHLB).

    Parameters
    ----------
    hashes : array of uint64
        The hash of each tuple's key.
    instances : int
        The number of instances.
    seed : int
        Seeds the function.
    substreams : int
        The number of substreams, p: keys are hashed to substreams first, and these to instances.

    Returns
    -------
    array of int
        The instance of each tuple, from 0.

    Raises
    ------
    PlanningError
        If a number is out of range, or the hashes are no whole numbers.

    Notes
    -----
    ELB/CLB, section 5: h from [p] to [n]. The family is Carter and Wegman's, ((a x + b) mod P) mod n with a prime P, as
    in `dask_elastic.planning.placement.universal_hash`.

    Examples
    --------
    >>> universal_hash([7, 8, 7], instances=3, seed=1).tolist()
    [0, 1, 0]
    """
    instances = _checked("instances", instances, 1, _PRIME)
    substreams = _checked("substreams", substreams, 1, _PRIME)
    seed = as_seed(seed)
    random = np.random.default_rng(seed)
    factor, shift = int(random.integers(1, _PRIME)), int(random.integers(0, _PRIME))
    substream = _words(hashes) % np.uint64(substreams)
    slot = (substream * np.uint64(factor) + np.uint64(shift)) % np.uint64(_PRIME)
    return (slot % np.uint64(instances)).astype(np.int64)


def consistent_hash(hashes: ArrayLike, instances: int, replicas: int = 100, seed: int = 0) -> Ints:
    """Return the instance of each key by a ring.

    Parameters
    ----------
    hashes : array of uint64
        The hash of each tuple's key.
    instances : int
        The number of instances. An added instance takes keys from all others; no other key moves.
    replicas : int
        Points of an instance on the ring.
    seed : int
        Seeds the ring.

    Returns
    -------
    array of int
        The instance of each tuple, from 0.

    Raises
    ------
    PlanningError
        If a number is out of range, or the hashes are no whole numbers.

    Notes
    -----
    State migration, section 6. It is the ring of `dask_elastic.planning.placement.consistent_hash`.

    Examples
    --------
    >>> five, six = (consistent_hash(range(1000), instances) for instances in (5, 6))
    >>> bool(((five == six) | (six == 5)).all())
    True
    """
    instances = _checked("instances", instances, 1, _MOST_POINTS)
    replicas = _checked("replicas", replicas, 1, _MOST_POINTS // instances)
    seed = as_seed(seed)
    owner = np.repeat(np.arange(instances), replicas)
    at = hashed(hashed(owner, 2 * seed), np.tile(np.arange(replicas), instances))
    order = np.argsort(at, kind="stable")
    found = np.searchsorted(at[order], hashed(_words(hashes), 2 * seed + 1))
    result: Ints = owner[order][found % len(owner)]
    return result


class PartialKeyGrouping:
    """Partial key grouping (PKG): send each tuple to the less loaded of its key's few instances.

    Parameters
    ----------
    instances : int
        The number of instances.
    choices : int
        The number of instances of a key.
    hot_choices : int, optional
        The number of instances of a hot key, at least `choices`. If left out, no key is hot.
    hot_share : float, optional
        The share of all tuples from which a key is hot. If left out, the share of one instance.
    step : int
        The number of tuples routed by the same loads. 1 is the exact method; more is faster, and loads differ by about
        as many tuples more.
    seed : int
        Seeds the instances of a key.

    Raises
    ------
    PlanningError
        If a number is out of range.

    Notes
    -----
    ELB/CLB, section 1.1; Enorm, section 3.2. Loads are the tuples that this object has sent.
    The shares of keys are counted with ten times as many counters as keys can be hot (the summary of Misra and Gries):
    a key with 1.1 times the share is always found, one below the share never.

    Examples
    --------
    >>> keys = np.tile([3, 3, 3, 4], 1000)
    >>> np.bincount(PartialKeyGrouping(4).route(keys), minlength=4).tolist()
    [1512, 984, 0, 1504]
    """

    def __init__(
        self,
        instances: int,
        choices: int = 2,
        hot_choices: int | None = None,
        hot_share: float | None = None,
        step: int = 64,
        seed: int = 0,
    ):
        instances = _checked("instances", instances, 1, _MOST_POINTS)
        choices = _checked("choices", choices, 1, min(instances, _MOST_CHOICES))
        hot_choices = choices if hot_choices is None else hot_choices
        hot_choices = _checked("hot_choices", hot_choices, choices, min(instances, _MOST_CHOICES))
        step, seed = _checked("step", step, 1), as_seed(seed)
        share = 1 / instances if hot_share is None else hot_share
        if not (is_number(share) and 1 / _MOST_POINTS <= share <= 1):
            raise PlanningError(
                f"hot_share is {hot_share!r}: give a part of all tuples, from {1 / _MOST_POINTS:.2g} up to 1."
            )
        self._choices = choices
        self._hot_choices = hot_choices
        self._step = step
        self._seed = seed
        self._heavy = _HeavyKeys(share)
        self._load = np.zeros(instances, dtype=np.int64)

    @property
    def load(self) -> Ints:
        """The number of tuples sent to each instance so far."""
        return self._load.copy()

    def route(self, hashes: ArrayLike) -> Ints:
        """Return the instance of each tuple, in order, and count the tuples.

        Parameters
        ----------
        hashes : array of uint64
            The hash of each tuple's key.

        Returns
        -------
        array of int
            The instance of each tuple, from 0.

        Raises
        ------
        PlanningError
            If the hashes are no whole numbers.
        """
        words = _words(hashes)
        offered = candidates(words, len(self._load), self._choices, self._seed)
        place, more = self._hot(words)
        target = np.empty(len(words), dtype=np.int64)
        for begin in range(0, len(words), self._step):
            rows = slice(begin, begin + self._step)
            chosen = self._least_loaded(offered[rows])
            hot = place[rows] >= 0
            if hot.any():
                chosen[hot] = self._least_loaded(more[place[rows][hot]])
            target[rows] = chosen
            self._load += np.bincount(chosen, minlength=len(self._load))
        return target

    def _least_loaded(self, offered: Ints) -> Ints:
        """Return for each row the instance with the least load, the first of equal ones."""
        least: Ints = offered[np.arange(len(offered)), self._load[offered].argmin(axis=1)]
        return least

    def _hot(self, words: NDArray[np.uint64]) -> tuple[Ints, Ints]:
        """Return for each tuple the number of its hot key, −1 for others, and the instances for each hot key."""
        place = np.full(len(words), -1)
        if self._hot_choices == self._choices:
            return place, np.empty((0, self._choices), dtype=np.int64)
        self._heavy.count(words)
        hot = self._heavy.among(words)
        keys, place[hot] = np.unique(words[hot], return_inverse=True)
        return place, candidates(keys, len(self._load), self._hot_choices, self._seed)


def candidates(hashes: ArrayLike, instances: int, choices: int, seed: int = 0) -> Ints:
    """Return the instances that each key may go to.

    Parameters
    ----------
    hashes : array of uint64
        The hash of each key.
    instances : int
        The number of instances.
    choices : int
        The number of instances per key.
    seed : int
        Seeds the choice.

    Returns
    -------
    array of int, keys × choices
        Different instances for each key; with more choices the first ones stay the same.

    Raises
    ------
    PlanningError
        If a number is out of range, or the hashes are no whole numbers.

    Examples
    --------
    >>> candidates([7, 8], instances=5, choices=2).tolist()
    [[0, 4], [4, 3]]
    """
    instances = _checked("instances", instances, 1, _MOST_POINTS)
    choices = _checked("choices", choices, 1, min(instances, _MOST_CHOICES))
    seed = as_seed(seed)
    words = _words(hashes)
    chosen = np.empty((len(words), choices), dtype=np.int64)
    for place in range(choices):
        drawn = (hashed(words, (seed << 16) + place) % np.uint64(instances - place)).astype(np.int64)
        # Map the drawn rank to a remaining instance: each earlier choice that is not above it moves it up by one.
        for earlier in np.sort(chosen[:, :place], axis=1).T:
            drawn += drawn >= earlier
        chosen[:, place] = drawn
    return chosen


def expansion(hashes: ArrayLike, target: ArrayLike) -> float:
    """Return the mean number of instances that hold state of a key; 0 for no tuples.

    Parameters
    ----------
    hashes : array of uint64
        The hash of each tuple's key.
    target : array of int
        The instance of each tuple.

    Raises
    ------
    PlanningError
        If there are not as many hashes as instances, or they are no whole numbers.

    Notes
    -----
    Enorm, section 4.4.2: each further instance is memory, and a partial result to merge.

    Examples
    --------
    >>> expansion([7, 7, 8, 8], [0, 1, 2, 2])
    1.5
    """
    words, places = _words(hashes), as_array("target", target)
    if places.size and places.dtype.kind not in "iu":
        raise PlanningError(f"target has type {places.dtype}: give the instance of each tuple, a whole number.")
    if words.shape != places.shape:
        raise PlanningError(f"target has shape {places.shape}, hashes {words.shape}: give one instance for each tuple.")
    if not len(words):
        return 0.0
    order = np.lexsort((places, words))
    other_key = np.diff(words[order]) != 0
    other_pair = other_key | (np.diff(places[order]) != 0)
    return float((1 + other_pair.sum()) / (1 + other_key.sum()))


class _HeavyKeys:
    """Counters of the keys that may have a share of all tuples or more.

    After a batch, surplus counters are freed by subtracting the count of the greatest of them from all; so a count is
    too low by at most the number of tuples divided by the number of counters.
    """

    def __init__(self, share: float):
        self._share = share
        self._counters = math.ceil(_TRACKED_PER_HOT_KEY / share)
        self._key = np.empty(0, dtype=np.uint64)
        self._count = np.empty(0, dtype=np.int64)
        self._total = 0

    def count(self, words: NDArray[np.uint64]) -> None:
        """Count the keys of a batch."""
        key, count = np.unique(words, return_counts=True)
        self._key, place = np.unique(np.concatenate([self._key, key]), return_inverse=True)
        self._count = np.bincount(place, np.concatenate([self._count, count]), len(self._key)).astype(np.int64)
        self._total += len(words)
        if len(self._key) > self._counters:
            beyond = len(self._key) - self._counters - 1
            self._count -= np.partition(self._count, beyond)[beyond]
            kept = self._count > 0
            self._key, self._count = self._key[kept], self._count[kept]

    def among(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which keys are hot now."""
        return np.isin(words, self._key[self._count >= self._share * self._total])


def _words(hashes: ArrayLike) -> NDArray[np.uint64]:
    words = as_array("hashes", hashes)
    if words.ndim != 1 or (words.size and words.dtype.kind not in "iu"):
        raise PlanningError(
            f"hashes has shape {words.shape} and type {words.dtype}: give one whole number for each tuple, such as"
            " those of hash_columns."
        )
    return words.astype(np.uint64)


def _checked(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return a whole number as an int, which does not overflow as those of NumPy do."""
    if not is_whole(value) or value < least:
        raise PlanningError(f"{name} is {value!r}: give a whole number from {least} on.")
    if most is not None and value > most:
        raise PlanningError(f"{name} is {value!r}: give {most} at most.")
    return int(value)
