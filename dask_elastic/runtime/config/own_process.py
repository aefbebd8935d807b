"""Whether a process runs nothing but Dask, and what garbage collection then need not look at."""

from __future__ import annotations

import atexit
import gc
import sys
from pathlib import Path
from types import ModuleType

_COMMANDS = {"dask", "dask-scheduler", "dask-spec", "dask-worker"}
_MODULES = ("dask.__main__", "distributed.cli.")


def is_own_process(main: ModuleType | None = None) -> bool:
    """Return whether this process was started to run Dask alone, as with ``dask scheduler`` or by SSH clusters.

    Parameters
    ----------
    main : module, optional
        The module that the process runs; by default that of this one.

    Returns
    -------
    bool
        False where a scheduler shares the process of a notebook or a program, as that of `LocalCluster` does.

    Examples
    --------
    >>> program = ModuleType("__main__")
    >>> program.__file__ = "/opt/venv/bin/dask"
    >>> is_own_process(program)
    True
    >>> program.__file__ = "/home/me/flights.py"
    >>> is_own_process(program)
    False
    """
    main = sys.modules.get("__main__") if main is None else main
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return bool(spec.name.startswith(_MODULES))
    return Path(getattr(main, "__file__", None) or "").stem in _COMMANDS


MIDDLE_OBJECTS = 7_700
"""Objects that a collection of the middle generation looks at with Python's own thresholds: 11 times 700."""

TRIPLED = {(2_100, 30, 30), (6_000, 30, 30)}
"""The thresholds that ``dask scheduler`` sets: three times those of Python up to 3.12, and of 3.13."""

_FROZEN = False


def leave_out_modules() -> None:
    """Let garbage collection leave out all objects of now in a scheduler's own process, where they stay until its end.

    Notes
    -----
    A full collection stops every thread, and with it the event loop, for some 0.1 seconds: it looks at the objects of
    some 2,000 modules each time. In the process of a notebook, objects of users would be left out as well, and never be
    freed if they refer to each other. Collections of the middle generation look at few objects at a time from then on.
    """
    global _FROZEN
    if not _FROZEN and is_own_process():
        _FROZEN = True
        gc.collect()
        gc.freeze()
        # Otherwise files that modules of users hold open, in objects that refer to each other, would not be written.
        atexit.register(gc.unfreeze)
        _collect_in_small_steps()


def leave_out_worker_modules(has_nanny: bool, executed: int) -> None:
    """Let garbage collection leave out all objects of now in a worker's own process that has executed no task.

    Parameters
    ----------
    has_nanny : bool
        Whether a nanny has started the process: it then runs this worker alone.
    executed : int
        Tasks of users that the worker has executed. What these have left may refer to each other, and has to be freed.

    Notes
    -----
    A full collection stopped all threads of a worker for 60 to 90 ms, once in 15 seconds of a stream of small batches.
    Nothing is collected before, as the first rows of a job would wait for it.
    """
    global _FROZEN
    if not _FROZEN and not executed and (has_nanny or is_own_process()):
        _FROZEN = True
        gc.freeze()
        atexit.register(gc.unfreeze)


def _collect_in_small_steps() -> None:
    """Have collections of the middle generation look at no more objects than with Python's own thresholds.

    Notes
    -----
    ``dask scheduler`` triples all three thresholds, so that such a collection looks at nine times as many objects, and
    stops all threads for as much longer. All objects are looked at as often as before, and full collections come as
    seldom. Other thresholds are those of users, who may have switched collections off as well: these stay. From Python
    3.14 on, thresholds have another meaning.
    """
    young, middle, full = before = gc.get_threshold()
    if gc.isenabled() and before in TRIPLED and sys.version_info < (3, 14):
        fewer = max(MIDDLE_OBJECTS // young - 1, 1)
        gc.set_threshold(young, fewer, (middle + 1) * (full + 1) // (fewer + 1) - 1)
