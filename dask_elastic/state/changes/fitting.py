"""Single values that user code gives to keyed state, as they are read back, or the reason why they do not fit."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from dask_elastic.state.changes.plain_values import INTEGERS, UNKNOWN, quick_fit
from dask_elastic.state.stored_values import to_python, to_stored
from dask_elastic.topology.state_kind import Element
from dask_elastic.vocab.errors import StateValueError

Fit: TypeAlias = Callable[[Any], Any]
"""Returns a value in the declared type; raises `StateValueError` if it does not fit."""

_LONGEST = 100
"""Characters of a value that an error shows."""

_LOCAL_TIME = pa.timestamp("us")
_TEXTS = pa.string(), pa.large_string()
_PLAIN = {
    pa.float64(): float,
    pa.bool_(): bool,
    pa.binary(): bytes,
    pa.large_binary(): bytes,
    pa.date32(): datetime.date,
}
"""The Python types of which every value fits, so that Arrow, which takes longer for one value, need not see it."""


def fit_of_values(kind: Element, name: str) -> Fit:
    """Return what takes the values of a declared name; None, which deletes a value, fits always.

    Parameters
    ----------
    kind : DataType or object
        The declared type.
    name : str
        The declared name.

    Returns
    -------
    callable
        Returns a value as it is read back; raises `StateValueError` with the name, the type and the value.

    Examples
    --------
    >>> fit_of_values(pa.int64(), "last")("12")
    12
    """
    return _fit(kind, name, _nothing)


def _fit(kind: Element, name: str, null: Fit) -> Fit:
    if not isinstance(kind, pa.DataType):
        return _same

    quick = quick_fit(kind)

    def converted(value: Any) -> Any:
        if value is None:
            return null(name)
        found = quick(value)
        return _converted(value, kind, name) if found is UNKNOWN else found

    if kind in INTEGERS:
        least, most = INTEGERS[kind]

        def integer(value: Any) -> Any:
            return value if type(value) is int and least <= value <= most else converted(value)

        return integer
    if kind == _LOCAL_TIME:
        # Python's times have microseconds, too, and the years of all of them fit.
        return lambda value: value if type(value) is datetime.datetime and value.tzinfo is None else converted(value)
    if kind in _TEXTS:
        return lambda value: value if type(value) is str and _is_unicode(value) else converted(value)
    plain = _PLAIN.get(kind)

    def other(value: Any) -> Any:
        return value if type(value) is plain else converted(value)

    return other


def fit_of_elements(kind: Element, name: str) -> Fit:
    """Return what takes the elements of lists, or the keys or values of maps, of a declared name; None does not fit.

    Parameters
    ----------
    kind : DataType or object
        The declared type.
    name : str
        The declared name.

    Returns
    -------
    callable
        As that of `fit_of_values`.

    Examples
    --------
    >>> fit_of_elements(pa.float64(), "recent")(3)
    3.0
    """
    return _fit(kind, name, _refused)


def _same(value: Any) -> Any:
    return value


def _nothing(name: str) -> None:
    return None


def _refused(name: str) -> None:
    raise StateValueError(f"the state {name!r} was given None; lists and maps hold no nulls, so leave it out")


def _is_unicode(text: str) -> bool:
    """Return whether text can be encoded: it is not if it has a half of a pair of surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _converted(value: Any, kind: pa.DataType, name: str) -> Any:
    try:
        stored, known = to_stored([value], kind)
        return to_python(stored, kind, known)[0]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."
        raise StateValueError(
            f"the state {name!r} is declared as {kind}, which {shown} does not fit: {error}"
        ) from error
