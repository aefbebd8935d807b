"""The latest begin of a partial result in a store."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.slots import LIVE
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import END, NO_END, START
from dask_elastic.state.windows.instance_marks import unmarked


def latest_begin(store: KeyedStore) -> int | None:
    """Return the latest begin of a slice or an instance of which a store has partials.

    Parameters
    ----------
    store : KeyedStore
        State of windows over event time.

    Returns
    -------
    int or None
        Microseconds since the Unix epoch; None without partials.
    """
    with store.held():
        names = [field.name for field in store.fields]
        if START.name not in names:
            return None
        used = store.slots.used
        ends = store.slots.values[names.index(END.name)][:used]
        present = ((store.slots.marks[:used] & LIVE) != 0) & (ends != NO_END)
        begins = store.slots.values[names.index(START.name)][:used][present]
    return int(np.max(unmarked(begins))) if len(begins) else None
