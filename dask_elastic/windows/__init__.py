"""Windows: their definitions for users; the plan that merges partials into complete windows, and what both cost.

Notes
-----
Enorm, sections 4.2, 5.1.1 and 6.1; ERRATA, Enorm 1, on how many results the paper's example merges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_elastic.topology.windowing import CountWindow, EventWindow, SessionWindow
from dask_elastic.topology.windows.definitions import count, hopping, session, sliding, tumbling
from dask_elastic.vocab.unknown_name import unknown_name

__all__ = ["CountWindow", "EventWindow", "SessionWindow", "count", "hopping", "session", "sliding", "tumbling"]

_SYNONYMS = {
    **dict.fromkeys(("tumble", "fixed", "fixedwindow", "tumblingwindow", "every"), "tumbling"),
    **dict.fromkeys(("hop", "hoppingwindow", "overlapping"), "hopping"),
    **dict.fromkeys(("slide", "slidingwindow"), "sliding"),
    **dict.fromkeys(("sessions", "sessionwindow", "gap"), "session"),
    **dict.fromkeys(("rows", "countwindow", "tuples"), "count"),
}

if not TYPE_CHECKING:  # Type checkers report unknown names themselves.

    def __getattr__(name: str) -> object:
        raise unknown_name("windows", name, __all__, _SYNONYMS)
