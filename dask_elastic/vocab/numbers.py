"""Checks of numeric arguments, with errors that name the argument."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.errors import PlanningError


def is_number(given: Any) -> TypeGuard[float]:
    """Return whether a value is a single real number; a bool is not one.

    Parameters
    ----------
    given : object
        The value.

    Returns
    -------
    bool
        True for a number of Python or NumPy.

    Examples
    --------
    >>> is_number(2.5), is_number("2.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)


def is_whole(given: Any) -> TypeGuard[int]:
    """Return whether a value is a single integer; a bool is not one.

    Parameters
    ----------
    given : object
        The value.

    Returns
    -------
    bool
        True for an integer of Python or NumPy.

    Examples
    --------
    >>> is_whole(2), is_whole(2.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


def as_floats(name: str, given: Any) -> NDArray[np.float64]:
    """Return numbers as an array of floats; a float64 array is returned as it is.

    Parameters
    ----------
    name : str
        The argument's name, for the error text.
    given : array_like
        The numbers.

    Returns
    -------
    ndarray of float64
        The numbers, of any shape.

    Raises
    ------
    PlanningError
        If a value is not a number, or rows differ in length.

    Examples
    --------
    >>> as_floats("load", [1, 2])
    array([1., 2.])
    """
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise PlanningError(f"{name} is not an array of numbers: {error}.") from error


def as_array(name: str, given: Any) -> NDArray[Any]:
    """Return integers as an array without checking its dtype; an array is returned as it is.

    Parameters
    ----------
    name : str
        The argument's name, for the error text.
    given : array_like
        The integers.

    Returns
    -------
    ndarray
        The integers, of any shape; the caller checks the dtype.

    Raises
    ------
    PlanningError
        If rows differ in length.

    Examples
    --------
    >>> as_array("owner", [0, 1]).dtype.kind
    'i'
    """
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise PlanningError(f"{name} is not an array of integers: {error}.") from error
