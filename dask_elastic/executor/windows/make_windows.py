"""The logic of windows for one task."""

from __future__ import annotations

from typing import TypeAlias

from dask_elastic.executor.windows.count_logic import CountLogic
from dask_elastic.executor.windows.session_logic import SessionLogic
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.state.session import Session
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute

Windows: TypeAlias = WindowLogic | SessionLogic | CountLogic


def make_windows(operator: Compute, store: KeyedStore, session: Session, emits: bool, groups: int) -> Windows:
    """Return the logic of a compute with windows and aggregates for one task.

    Parameters
    ----------
    operator : Compute
        The compute.
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with the store.
    emits : bool
        Whether the output is read.
    groups : int
        The number of groups of the component's key space.

    Returns
    -------
    WindowLogic, SessionLogic or CountLogic
        The logic.
    """
    assert operator.windowing is not None
    if operator.windowing.counted:
        return CountLogic(operator, store, session, groups, emits)
    if operator.windowing.joins_results:
        return SessionLogic(operator, store, session, groups, emits)
    return WindowLogic(operator, store, session, groups, emits)
