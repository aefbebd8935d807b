"""The fields that partial aggregates of windows have beside those of the aggregates."""

from __future__ import annotations

import numpy as np

from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import Windowing

START = Field("__start", np.dtype(np.int64), 0)
"""The begin of the slice or the instance, in microseconds since the Unix epoch."""

NO_END = -(2**63)

END = Field("__end", np.dtype(np.int64), NO_END)
"""Its end."""

KEY_HASH = Field("__hash", np.dtype(np.uint64), 0)
KEY_CHECK = Field("__check", np.dtype(np.uint64), 0)
"""The identity of the key, by which its slices are merged; that of the slot is the identity of a slice of the key."""

NOT_CLOSED, FAILED = -1, -2

REVISION = Field("__revision", np.dtype(np.int64), NOT_CLOSED)
"""The revision of the result that was emitted last since the instance was closed."""

SHOWN_START = Field("__shown_start", np.dtype(np.int64), 0)
SHOWN_END = Field("__shown_end", np.dtype(np.int64), NO_END)
"""The bounds of the result that was emitted last for a session."""

FRESH = Field("__fresh", np.dtype(np.bool_), False)
"""Whether a cell of a session has rows that are in no result yet."""

ROWS = Field("__rows", np.dtype(np.int64), 0)
"""The number of rows of the key; only in one of its slots."""

OLDEST = Field("__oldest", np.dtype(np.int64), 2**63 - 1)
NEWEST = Field("__newest", np.dtype(np.int64), -(2**63))
"""Begin and end of the times of the rows of a slice."""


def window_fields(operator: Compute, merges: bool) -> tuple[Field, ...]:
    """Return the fields of the state of a windowed compute that follow those of its aggregates.

    Parameters
    ----------
    operator : Compute
        An operator with windows.
    merges : bool
        Whether its partials are of slices, which are merged.

    Returns
    -------
    tuple of Field
        The fields.
    """
    assert operator.windowing is not None
    fields = (START, END, KEY_HASH, KEY_CHECK) if merges else (START, END)
    return (*fields, REVISION) if operator.windowing.revised else fields


def session_fields() -> tuple[Field, ...]:
    """Return the fields of the state of sessions with several results that follow those of the aggregates.

    Returns
    -------
    tuple of Field
        The fields: those of other sessions; and at one cell of each session, what was emitted last for it.
    """
    return START, END, KEY_HASH, KEY_CHECK, SHOWN_START, SHOWN_END, REVISION, FRESH


def count_fields(windowing: Windowing) -> tuple[Field, ...]:
    """Return the fields of the state of a compute with count windows that follow those of its aggregates.

    Parameters
    ----------
    windowing : Windowing
        A count window.

    Returns
    -------
    tuple of Field
        The fields: begin and end of the slice as numbers of rows, the rows of the key, and perhaps the slice's times.
    """
    return (START, END, ROWS, OLDEST, NEWEST) if windowing.time else (START, END, ROWS)
