"""The logic of a join for one task."""

from __future__ import annotations

from dask_elastic.executor.joins.asof_join import AsOfJoin
from dask_elastic.executor.joins.interval_join import IntervalJoin
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.session import Session
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute


def make_join(operator: Compute, store: KeyedStore, session: Session, space: KeySpace) -> IntervalJoin | AsOfJoin:
    """Return the logic of a join for one task, which also handles state records.

    Parameters
    ----------
    operator : Compute
        The join.
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with the store.
    space : KeySpace
        The component's key space.

    Returns
    -------
    IntervalJoin or AsOfJoin
        The logic.
    """
    assert operator.join is not None
    kind = AsOfJoin if operator.join.kind == "asof" else IntervalJoin
    return kind(operator, store, session, space)
