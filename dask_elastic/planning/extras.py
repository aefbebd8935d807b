"""Optional dependencies of planners: solvers that the base installation does not have."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dask_elastic.vocab.errors import MissingExtra


def require(module: str, user: str) -> Any:
    """Import a module of the extra ``planners``.

    Parameters
    ----------
    module : str
        The module, such as ``"highspy"``.
    user : str
        What needs it, for the error text.

    Returns
    -------
    module
        The imported module.

    Raises
    ------
    MissingExtra
        If it is not installed. The text names the extra.

    Examples
    --------
    >>> require("no_such_solver", "planner 'fast'")
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.MissingExtra: planner 'fast' needs no_such_solver: pip install 'dask-elastic[planners]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{user} needs {module}: pip install 'dask-elastic[planners]'") from error
