"""Imports of hundreds of modules, which a process makes once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def many_imports() -> Iterator[None]:
    """Import without collecting garbage meanwhile.

    Notes
    -----
    Modules and classes stay. To look through all of them again and again, while they become more, would take a
    twentieth of the time of the imports.

    Examples
    --------
    >>> with many_imports():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
