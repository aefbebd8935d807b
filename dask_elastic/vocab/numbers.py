"""Checks of numeric arguments, with errors that name the argument."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.errors import PlanningError

MOST_TOTAL = 1e150
"""The most that numbers of a problem may add up to: products of two such sums are finite."""

MOST_SEED = 1 << 32
"""Seeds are below this, so that multiples of them fit into the words that are hashed."""


def is_number(given: Any) -> TypeGuard[float]:
    """Return whether a value is a single real number that a float can hold; a bool is not one.

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
    if not isinstance(given, int | float | np.integer | np.floating) or isinstance(given, bool):
        return False
    try:
        float(given)
    except OverflowError:
        return False
    return True


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


def check_total(name: str, values: NDArray[np.float64]) -> None:
    """Raise if numbers of 0 or more are so large that sums or products of sums overflow.

    Parameters
    ----------
    name : str
        The argument's name, for the error text.
    values : ndarray of float64
        The numbers.

    Raises
    ------
    PlanningError
        If their sum exceeds `MOST_TOTAL`.

    Examples
    --------
    >>> check_total("load", np.array([1e308, 1e308]))
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.PlanningError: load adds up to more than 1e+150: give it in a larger unit.
    """
    # No single value may be too large either, so that the sum does not overflow.
    if values.size and not (float(values.max()) <= MOST_TOTAL and float(values.sum()) <= MOST_TOTAL):
        raise PlanningError(f"{name} adds up to more than {MOST_TOTAL:g}: give it in a larger unit.")


def as_seed(seed: Any) -> int:
    """Return a seed as an int.

    Parameters
    ----------
    seed : int
        The seed.

    Returns
    -------
    int
        The seed.

    Raises
    ------
    PlanningError
        If it is not a whole number from 0 to below 2**32.

    Examples
    --------
    >>> as_seed(np.int8(7))
    7
    """
    if not is_whole(seed) or not 0 <= seed < MOST_SEED:
        raise PlanningError(f"seed is {seed!r}: give a whole number from 0 to {MOST_SEED - 1}.")
    return int(seed)


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
