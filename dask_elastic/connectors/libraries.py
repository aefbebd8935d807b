"""Libraries that only some sources and sinks need, and the versions of them that they need."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement

_PACKAGE = "dask-elastic"


def lacking(module: str, distribution: str, extra: str) -> str | None:
    """Return what to install where a library cannot be used: it is missing, or older than this package requires.

    A library that was installed before, or without the extra, may have any version: an older one may lose or repeat
    rows without an error.

    Parameters
    ----------
    module : str
        The name that is imported.
    distribution : str
        The name that is installed.
    extra : str
        The extra of this package that requires it.

    Returns
    -------
    str or None
        The end of an error's text; None if the library can be used.

    Examples
    --------
    >>> lacking("pyarrow", "pyarrow", "delta")
    >>> lacking("no_such_module", "no-such-module", "delta")
    'no-such-module is missing; install dask-elastic[delta] on all workers.'
    """
    install = f"install {_PACKAGE}[{extra}] on all workers."
    if importlib.util.find_spec(module) is None:
        return f"{distribution} is missing; {install}"
    required = _requirement(distribution, extra)
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        # A module that was put on the path by hand has no version to compare.
        return None
    if required is None or required.specifier.contains(found, prereleases=True):
        return None
    return f"{distribution} {found} does not meet {required.specifier}; {install}"


@cache
def _requirement(distribution: str, extra: str) -> Requirement | None:
    """Return what an extra requires of a library; None if it is not known, as without an installation."""
    try:
        lines = metadata.requires(_PACKAGE) or ()
    except metadata.PackageNotFoundError:
        return None
    for requirement in map(Requirement, lines):
        extras = requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
        if requirement.name == distribution and extras:
            return requirement
    return None
