"""Invariants of an executor, checked after every step of a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.pending import Pending
from dask_elastic.executor.remote import RemotePart
from dask_elastic.state.shard_owners import NO_OWNER
from dask_elastic.state.slots import LIVE
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

_NONE: Set[int] = frozenset()


class Invariants:
    """Checks executors between two steps; what has not changed since an executor's last check is not checked again.

    Parameters
    ----------
    states : bool
        Whether to compare the states of remote tasks with the primary copy as well, which takes longer.
    """

    __slots__ = ("_in_flight", "_seen", "_states")

    def __init__(self, states: bool = False) -> None:
        self._states = states
        self._seen: dict[ExecutorId, tuple[object, ...]] = {}
        self._in_flight: defaultdict[ExecutorId, dict[int, int]] = defaultdict(dict)

    def check(self, executor: ElasticExecutor, remotes: Sequence[RemotePart]) -> None:
        """Check one executor and its remote tasks.

        Raises
        ------
        ProtocolError
            If two tasks own a shard, the table and the stores disagree, rows of a shard that does not move wait, or
            more sub-batches are in flight to a remote task, or in its pending queue, than its bounds allow.
        """
        routes, moves = executor.routes, executor.moves
        owners = [executor.store.owner.tobytes(), *[part.store.owner.tobytes() for part in remotes]]
        paused = moves.paused if moves.under_way else _NONE
        seen = (routes.table.version, tuple(routes.tasks), owners, set(routes.waiting), paused)
        if self._seen.get(executor.identity) != seen:
            _check_paused(executor)
            _check_owners(executor, [executor.store, *(part.store for part in remotes)])
            self._seen[executor.identity] = seen
        for part in remotes if self._states else ():
            _check_state(executor, part.store)
        before = self._in_flight[executor.identity]
        for task in routes.tasks.values():
            in_flight = len(task.in_flight)
            # A window that shrinks may leave more in flight; nothing may be added then.
            if in_flight > task.window and not task.at_home and in_flight > before.get(task.number, 0):
                raise ProtocolError(
                    f"{executor.identity}: {in_flight} sub-batches are in flight to task {task.number}, "
                    f"whose window is {task.window}"
                )
            before[task.number] = in_flight
            if task.pending is not None:
                _check_pending(executor.identity, task.pending)


def _check_state(executor: ElasticExecutor, store: KeyedStore) -> None:
    """Check that remote tasks have all keys of their shards that the primary copy has; no key is ever deleted."""
    lacking = (store.owner != NO_OWNER) & (_live_keys(store) < _live_keys(executor.store))
    if lacking.any():
        raise ProtocolError(
            f"{executor.identity}: the remote tasks {sorted({*store.owner[lacking].tolist()})} lack keys of their "
            f"shards {np.flatnonzero(lacking).tolist()} that the primary copy has"
        )


def _live_keys(store: KeyedStore) -> npt.NDArray[np.intp]:
    used = store.slots.used
    live = (store.slots.marks[:used] & LIVE) != 0
    return np.bincount(store.slots.shards[:used][live], minlength=store.shards)


def _check_paused(executor: ElasticExecutor) -> None:
    """Check that exactly the shards whose moves have paused them are paused, and that only their rows wait."""
    routes = executor.routes
    paused = {shard for shard in np.flatnonzero(routes.table.paused).tolist() if shard not in routes.shared}
    exchange = executor.exchange if isinstance(executor, GroupExecutor) else None
    moving = executor.moves.paused | (set() if exchange is None else exchange.missing.keys())
    if routes.waiting.keys() != paused or moving != paused:
        raise ProtocolError(
            f"{executor.identity}: the shards {sorted(paused)} are paused, rows wait for {sorted(routes.waiting)}, and "
            f"the moves of {sorted(moving)} have paused them"
        )


def _check_pending(executor: ExecutorId, pending: Pending) -> None:
    """Check that a pending queue counts its bytes right, and exceeds its limit by no more than its last sub-batch."""
    held = last = 0
    for sent in pending:
        last = sent.nbytes
        held += last
    if held != pending.nbytes or held - last > pending.limit:
        raise ProtocolError(
            f"{executor}: a pending queue holds {held} bytes, counts {pending.nbytes}, and is limited to "
            f"{pending.limit}"
        )


def _check_owners(executor: ElasticExecutor, stores: Sequence[KeyedStore]) -> None:
    """Check that a shard has at most one owner, the one in the table unless the shard moves or is being installed."""
    routes = executor.routes
    owners = zip(*(store.owner.tolist() for store in stores), strict=True)
    here = executor.owned if isinstance(executor, GroupExecutor) else range(routes.space.shards)
    shards = zip(routes.table.owner.tolist(), routes.table.paused.tolist(), owners, strict=True)
    for shard, (task, paused, by_store) in enumerate(shards):
        # The earlier owner of a shard that moves instantly still has rows and partials of it.
        owning = [owner for owner in by_store if owner not in (NO_OWNER, executor.moves.instant.leaving(shard))]
        lost = shard in here and not owning and not paused and routes.tasks[task].at_home
        wrong = not paused and owning not in ([], [task])
        if len(owning) > 1 or lost or wrong:
            raise ProtocolError(
                f"{executor.identity}: shard {shard} ({'paused' if paused else 'not paused'}) belongs to task {task} "
                f"in the table, but its owners in the stores, home first, are {list(by_store)}"
            )
