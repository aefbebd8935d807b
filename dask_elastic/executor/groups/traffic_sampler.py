"""Samples the traffic from key groups to the groups of the next operators: processes one group's rows by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dask_elastic.meters.group_flows import GroupFlows
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.lock import Lock
from dask_elastic.vocab.state_record import TimersDue

SHARE = 0.002
"""Share of the time of a thread that samples may take."""

EVERY = 4
"""Batches from one that may be sampled to the next; more than the two parts of a sample."""


class TrafficSampler:
    """Processes now and then the rows of one key group before those of the others, and counts where its outputs go.

    Parameters
    ----------
    flows : GroupFlows
        Gets the samples.
    component : str
        The operator.
    spaces : mapping of str to KeySpace
        Key space of each stateful component.
    lock : Lock
        Serialises the use of `flows`.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    share : float
        The share of the time of the thread that samples may take.

    Notes
    -----
    What an output follows from is known only where a function gets rows of one group. Two calls for one batch cost the
    fixed part of a call twice: this is what is estimated and limited to `SHARE`, with the time to cut and to count.
    """

    def __init__(
        self,
        flows: GroupFlows,
        component: str,
        spaces: Mapping[str, KeySpace],
        lock: Lock,
        clock: Callable[[], float],
        share: float = SHARE,
    ):
        self.flows = flows
        self.share = share
        self._space = spaces[component]
        self._spaces = spaces
        self._lock = lock
        self._clock = clock
        self._due = -np.inf
        self._second = False
        self._turn = 0
        self._turns = np.full(self._space.shards, -1, np.int64)

    def note_record(self, now: float) -> None:
        """Count a state record; one of which a sample makes two counts once."""
        if self._second:
            self._second = False
            return
        with self._lock:
            self.flows.records.add(1, now)

    def process(self, batch: Batch, process: Callable[[Batch], list[Delivery]]) -> list[Delivery]:
        """Process a batch, in two parts if a sample is due; called for one batch of `EVERY`.

        Parameters
        ----------
        batch : Batch
            The rows of some groups, or a state record for them.
        process : callable
            Processes a batch; returns its outputs.
        """
        fired = batch.record is not None
        if self._clock() < self._due or (fired and not isinstance(batch.record, TimersDue)):
            return process(batch)
        return self._sample(batch, fired, process)

    def _sample(self, batch: Batch, fired: bool, process: Callable[[Batch], list[Delivery]]) -> list[Delivery]:
        began = self._clock()
        groups = self._groups_of(batch)
        if not len(groups):
            return process(batch)
        group = self._next(groups)
        chosen = groups == group
        count = int(chosen.sum())
        sampled, rest = _part(batch, chosen), None if count == len(groups) else _part(batch, ~chosen)
        cut = self._clock()
        outputs = process(sampled)
        done = self._clock()
        self._second = fired and rest is not None
        others = [] if rest is None else process(rest)
        ended = self._clock()
        sent = self._sent(outputs)
        with self._lock:
            self.flows.note(group, 1 if fired else count, fired, sent)
        # The first part took its share of the time, and what a call costs at least.
        fixed = max((done - cut) - count / len(groups) * (ended - cut), 0.0)
        now = self._clock()
        self._due = now + ((cut - began) + fixed + (now - ended)) / self.share
        return outputs + others

    def _groups_of(self, batch: Batch) -> NDArray[np.int64]:
        """Return the group of each row; a state record has a row for each group that it is addressed to."""
        if batch.record is not None:
            assert not isinstance(batch.rows, ChosenRows), "state records are rows of their own"
            return numpy_of(batch.rows.column(0)).astype(np.int64)
        assert batch.hashes is not None, "rows for an executor have hashes"
        return self._space.shard_of(batch.hashes).astype(np.int64)

    def _next(self, groups: NDArray[np.int64]) -> int:
        """Return that of some groups whose last sample is the oldest."""
        present = np.flatnonzero(np.bincount(groups, minlength=self._space.shards))
        group = int(present[np.argmin(self._turns[present])])
        self._turns[group] = self._turn
        self._turn += 1
        return group

    def _sent(self, outputs: list[Delivery]) -> dict[str, NDArray[np.float64]]:
        """Return the bytes for each group, by operator; rows for sinks have no group."""
        found: dict[str, NDArray[np.float64]] = {}
        for target, batch in outputs:
            if batch.hashes is None:
                continue
            space = self._spaces[target.component]
            rows = np.bincount(space.shard_of(batch.hashes), minlength=space.shards)
            before = found.get(target.component)
            nbytes = rows.astype(np.float64) * (batch.nbytes / max(batch.rows.num_rows, 1))
            found[target.component] = nbytes if before is None else before + nbytes
        return found


def _part(batch: Batch, chosen: NDArray[np.bool_]) -> Batch:
    if chosen.all():
        return batch
    rows = batch.rows.copied() if isinstance(batch.rows, ChosenRows) else batch.rows
    hashes = None if batch.hashes is None else batch.hashes[chosen]
    return batch._replace(rows=rows.filter(array_of(chosen)), hashes=hashes, row_bytes=None)
