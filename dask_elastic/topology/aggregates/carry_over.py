"""Which aggregates of a changed operator can be computed from the state of its aggregates before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.operand import Operand
from dask_elastic.topology.aggregates.partial_results import Partial
from dask_elastic.topology.aggregates.sums import Count, Mean, Sum
from dask_elastic.topology.aggregates.user_aggregate import UserAggregate
from dask_elastic.vocab.errors import StateError, TopologyError

EXACT = 2**53
"""Integers below are exact as float64."""

_UNSET = object()

Convert = Callable[[Mapping[str, Sequence[Values]], BoundAggregate], list[Values]]


@dataclass(frozen=True)
class Origin:
    """How the state of an output follows from that of earlier outputs.

    Parameters
    ----------
    convert : callable
        ``convert(before, bound)`` returns the state of the aggregate `bound` from the state of all earlier outputs.
    fields : str or None
        The earlier output whose fields it takes as they are; None if they are converted.
    """

    convert: Convert
    fields: str | None = None


def carry_over(before: Mapping[str, Aggregate], now: Mapping[str, Aggregate]) -> dict[str, Origin]:
    """Return how the state of each output follows from that of earlier outputs.

    An output keeps the state of the same aggregate, of its own name if possible. The sum and the number of values are
    those of a mean, and a mean is that of a sum and a number. Functions under the same name count as the same.

    Parameters
    ----------
    before : mapping of str to Aggregate
        The earlier aggregates of the operator by output.
    now : mapping of str to Aggregate
        Its aggregates now.

    Returns
    -------
    dict of str to Origin
        One for each output.

    Raises
    ------
    TopologyError
        When the earlier state does not suffice; names the outputs.

    Examples
    --------
    >>> origins = carry_over({"delay": Mean("delay")}, {"flights": Count("delay"), "mean": Mean("delay")})
    >>> origins["mean"].fields, origins["flights"].fields
    ('delay', None)
    >>> carry_over({"delay": Mean("delay")}, {"flights": Count()})
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: flights=Count() cannot be computed from ... delay=Mean('delay')...
    """
    origins = {name: _origin(name, aggregate, before) for name, aggregate in now.items()}
    unknown = [f"{name}={now[name]!r}" for name, origin in origins.items() if origin is None]
    if unknown:
        known = ", ".join(f"{name}={aggregate!r}" for name, aggregate in before.items())
        sums = any(type(now[name]) in (Count, Sum, Mean) for name, origin in origins.items() if origin is None)
        hint = " (a mean needs a sum and a count of the same column; each of these needs the mean)" if sums else ""
        raise TopologyError(f"{', '.join(unknown)} cannot be computed from the state of {known}{hint}")
    return {name: origin for name, origin in origins.items() if origin is not None}


def _origin(name: str, wanted: Aggregate, before: Mapping[str, Aggregate]) -> Origin | None:
    if name in before and _same(before[name], wanted, named=True):
        return _copy(name)
    for other, aggregate in before.items():
        if _same(aggregate, wanted, named=False):
            return _copy(other)
    return _derived(wanted, before)


def _copy(name: str) -> Origin:
    return Origin(lambda before, bound: list(before[name]), name)


def _derived(wanted: Aggregate, before: Mapping[str, Aggregate]) -> Origin | None:
    """Return how a count, a sum or a mean follows from the others of the same values."""
    values = getattr(wanted, "_operand", None)
    kinds = {
        type(aggregate): name
        for name, aggregate in before.items()
        if values is not None and _same_values(getattr(aggregate, "_operand", None), values, named=False)
    }
    if type(wanted) is Count and Mean in kinds:
        return Origin(lambda before, bound: [before[kinds[Mean]][1]])
    if type(wanted) is Sum and Mean in kinds:
        return Origin(lambda before, bound: _sum_of_mean(before[kinds[Mean]], bound.fields[0], repr(wanted)))
    if type(wanted) is Mean and Sum in kinds and Count in kinds:
        return Origin(lambda before, bound: [before[kinds[Sum]][0].astype(np.float64), before[kinds[Count]][0]])
    return None


def _sum_of_mean(mean: Sequence[Values], field: Field, owner: str) -> list[Values]:
    sums: npt.NDArray[np.float64] = mean[0]
    if field.dtype.kind != "f" and not (np.abs(sums) < EXACT).all():
        raise StateError(
            f"{owner} cannot be computed from the state of a mean: a sum exceeds 2**53, from where on float64 is not "
            "exact. Give the operator another name, or sum floats"
        )
    return [sums if field.dtype.kind == "f" else np.rint(sums).astype(field.dtype), mean[1] > 0]


def _same(one: object, other: object, named: bool) -> bool:
    """Return whether two aggregates have the same state.

    Parameters
    ----------
    one, other : Aggregate
        The aggregates.
    named : bool
        Whether they have the same output: then their functions may have changed.
    """
    # Whether results are partial ones says nothing about the state.
    one, other = (each.aggregate if isinstance(each, Partial) else each for each in (one, other))
    # By name: a class of a program is another object after it was pickled.
    if type(one).__qualname__ != type(other).__qualname__:
        return False
    if isinstance(other, UserAggregate):
        # Its attributes are the user's: they need not be comparable.
        return named
    parts, others = vars(one), vars(other)
    return parts.keys() == others.keys() and all(_same_values(parts[name], others[name], named) for name in parts)


def _same_values(one: Any, other: Any, named: bool) -> bool:
    if isinstance(one, Operand) and isinstance(other, Operand):
        return one.columns == other.columns and _same_values(one.of, other.of, named)
    if isinstance(one, Aggregate) and isinstance(other, Aggregate):
        return _same(one, other, named)
    if callable(one) and callable(other):
        return named or _equal(one, other, {})
    return _equal(one, other, {})


def _equal(one: Any, other: Any, compared: dict[tuple[int, int], tuple[Any, Any]]) -> bool:
    """Return whether two values are equal, functions by their code and what they capture.

    `compared` has the pairs that were compared, or are being compared, by their ids: values may contain themselves, and
    a difference of one pair is one of the whole.
    """
    pair = id(one), id(other)
    if one is other or pair in compared:
        return True
    compared[pair] = one, other
    if callable(one) and callable(other):
        code = _code(one)
        return code is not None and code == _code(other) and _equal(_captured(one), _captured(other), compared)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other, [compared] * len(one)))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], compared) for key in one)
    if isinstance(one, float) and one != one:
        return bool(other != other)
    try:
        if isinstance(one, np.ndarray):
            return one.dtype == other.dtype and np.array_equal(one, other)
        equal = one == other
        # Tables and columns of pandas are compared element by element.
        return bool(equal if isinstance(equal, bool | np.bool_) else one.equals(other))
    except Exception:  # the values are the user's: they need not be comparable
        return False


def _code(function: Any) -> tuple[Any, ...] | None:
    code = getattr(function, "__code__", None)
    return None if code is None else (code.co_code, code.co_consts, code.co_names, code.co_freevars)


def _captured(function: Any) -> list[Any]:
    """Return the values of a function that its code does not contain: those of its closure, defaults, and object."""
    # A compiled function may have code alone.
    cells = [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
    keywords = sorted((getattr(function, "__kwdefaults__", None) or {}).items())
    return [cells, getattr(function, "__defaults__", None), keywords, getattr(function, "__self__", None)]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return _UNSET
