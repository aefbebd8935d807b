"""What the joins of one task have in common."""

from __future__ import annotations

from dask_elastic.executor.joins.join_results import JoinResults
from dask_elastic.executor.joins.row_buffer import RowBuffer
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.joins.layout import JoinLayout
from dask_elastic.state.session import Session
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.joins.joining import Joining
from dask_elastic.topology.operators import Compute


class JoinLogic:
    """A join for one task, which buffers rows in the state; not shared between threads.

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
    """

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, space: KeySpace):
        assert operator.join is not None
        self.joining: Joining = operator.join
        self.name = operator.name
        self.layout = JoinLayout(self.joining)
        self.buffer = RowBuffer(self.layout, store, session, space)
        self.results = JoinResults(self.joining)
