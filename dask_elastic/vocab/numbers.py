"""Arguments that have to be numbers, and errors that name those which are none."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.errors import PlanningError


def is_number(given: Any) -> TypeGuard[float]:
    """Return whether something is one real number; True and False are none.

    Examples
    --------
    >>> is_number(2.5), is_number("2.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)


def is_whole(given: Any) -> TypeGuard[int]:
    """Return whether something is one integer; True and False are none.

    Examples
    --------
    >>> is_whole(2), is_whole(2.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


def as_floats(name: str, given: Any) -> NDArray[np.float64]:
    """Return numbers as an array of floats, the same one where it is one already.

    Raises
    ------
    PlanningError
        If they are no numbers, or rows differ in length; tells the name.

    Examples
    --------
    >>> as_floats("load", [1, 2])
    array([1., 2.])
    """
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise PlanningError(f"{name} is no array of numbers: {error}.") from error


def as_array(name: str, given: Any) -> NDArray[Any]:
    """Return what should be integers as an array, of whatever type they are; the same one where it is one already.

    Raises
    ------
    PlanningError
        If rows differ in length; tells the name.

    Examples
    --------
    >>> as_array("owner", [0, 1]).dtype.kind
    'i'
    """
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise PlanningError(f"{name} is no array of integers: {error}.") from error
