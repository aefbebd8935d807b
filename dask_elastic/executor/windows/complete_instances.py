"""Results of instances, kept as long as a longer instance may be merged from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from dask_elastic.executor.windows.running_merges import Merged, merge
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.windows.cheapest_inputs import Span, cheapest_inputs
from dask_elastic.windows.window_plan import RUNNING

MOST_KEPT = 1 << 21
"""With more keys in all results that are kept, they are forgotten, and slices are merged."""


class CompleteInstances:
    """Instances of several windows, each merged from the slices and the complete shorter instances with fewest keys.

    Parameters
    ----------
    windows : sequence of EventWindow
        The windows.
    slice : int
        The length of a slice in microseconds.
    offset : int
        The begin of slice 0.

    Attributes
    ----------
    merged : int
        The keys of all inputs so far.

    Notes
    -----
    Enorm, section 6.1. A complete instance is kept until the longer instances that contain it have closed, or until a
    longer one that is itself complete stands for it in all of them. If a row is added to a slice within, it is dropped.
    """

    def __init__(self, windows: Sequence[EventWindow], slice: int, offset: int) -> None:
        self._windows = [
            ((one.start - offset) // slice, one.length // slice, one.frequency // slice) for one in windows
        ]
        self._longest = max(length for _, length, _ in self._windows)
        self._complete: dict[Span, Merged] = {}
        self._keys: dict[Span, float] = {}
        self._of_slices: dict[int, float] = {}
        self.merged = 0

    def merges_running(self, begin: int, end: int) -> bool:
        """Return whether running merges of slices take fewer merges than a merge of all slices of an instance."""
        hops = [hop for _, length, hop in self._windows if length == end - begin]
        return end - begin > RUNNING * min(hops)

    def form(self, bundle: Bundle, begin: int, end: int, read: Callable[[int], Merged]) -> Merged:
        """Return the state of an instance.

        Parameters
        ----------
        bundle : Bundle
            The aggregates.
        begin, end : int
            The number of its first slice, and of the first one behind it.
        read : callable
            Returns the state of a slice.
        """
        inputs = cheapest_inputs(begin, end, self._keys, self._of_slices)
        found = [self._input(span, read) for span in inputs]
        self.merged += int(sum(self._keys.get(span, self._of_slices.get(span[0], 0)) for span in inputs))
        return reduce(lambda one, other: merge(bundle, one, other), found)

    def _input(self, span: Span, read: Callable[[int], Merged]) -> Merged:
        complete = self._complete.get(span)
        if complete is not None:
            return complete
        part = read(span[0])
        self._of_slices[span[0]] = float(np.count_nonzero(part.present))
        return part

    def keep(self, begin: int, end: int, merged: Merged, keys: int) -> None:
        """Keep the state of an instance that has closed, if a longer one may need it."""
        span = begin, end
        if not self._is_needed(span, begin, None):
            return
        for shorter in [one for one in self._complete if begin <= one[0] and one[1] <= end and one != span]:
            if not self._is_needed(shorter, end, span):
                self._drop(shorter)
        self._complete[span], self._keys[span] = merged, float(keys)
        if sum(len(one.present) for one in self._complete.values()) > MOST_KEPT:
            self.forget()

    def _is_needed(self, span: Span, after: int, larger: Span | None) -> bool:
        """Return whether an instance contains a shorter one, ends later than `after`, and lacks a part of `larger`."""
        for start, length, hop in self._windows:
            if length <= span[1] - span[0]:
                continue
            last = start + (span[0] - start) // hop * hop
            while last + length >= span[1] and last + length > after:
                if larger is None or not (last <= larger[0] and larger[1] <= last + length):
                    return True
                last -= hop
        return False

    def _drop(self, span: Span) -> None:
        del self._complete[span], self._keys[span]

    def changed(self, earliest: int) -> None:
        """Note that rows have been added to a slice and to later ones."""
        for span in [span for span in self._complete if span[1] > earliest]:
            self._drop(span)
        for number in [number for number in self._of_slices if number >= earliest]:
            del self._of_slices[number]

    def closed(self, until: int) -> None:
        """Note that all instances are closed that end with a slice before `until`."""
        for span in [span for span in self._complete if not self._is_needed(span, until, None)]:
            self._drop(span)
        for number in [number for number in self._of_slices if number < until - self._longest]:
            del self._of_slices[number]

    def forget(self) -> None:
        """Forget all results."""
        self._complete.clear()
        self._keys.clear()
        self._of_slices.clear()
