"""Single values of state, as user code sets them and as it reads them in the next batch."""

from __future__ import annotations

import datetime
from decimal import Decimal
from unittest import mock

import pyarrow as pa
import pytest

from dask_elastic.state.changes import fitting
from dask_elastic.state.changes.fitting import fit_of_values
from dask_elastic.state.stored_values import to_python, to_stored

WITHOUT_ARROW = [
    (pa.int8(), -128),
    (pa.float64(), 0.1),
    (pa.string(), "a"),
    (pa.bool_(), True),
    (pa.timestamp("us"), datetime.datetime(1, 1, 1)),
    (pa.timestamp("us"), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
]
BY_ARROW = [
    (pa.float32(), 0.1),
    (pa.float64(), 3),
    (pa.timestamp("s"), datetime.datetime(2026, 1, 1)),
    (pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
    (pa.decimal128(5, 2), Decimal("1.5")),
    (pa.int64(), "12"),
]


@pytest.mark.parametrize(("kind", "value"), [*WITHOUT_ARROW, *BY_ARROW])
def test_value_is_the_same_before_and_after_it_is_stored(kind, value):
    fitted = fit_of_values(kind, "last")(value)
    stored, known = to_stored([fitted], kind)
    (read,) = to_python(stored, kind, known)
    assert (type(fitted), fitted) == (type(read), read)


@pytest.mark.parametrize(("kind", "value"), WITHOUT_ARROW)
def test_usual_values_are_not_converted_one_by_one(kind, value):
    fit = fit_of_values(kind, "last")
    with mock.patch.object(fitting, "_converted", side_effect=AssertionError("converted by Arrow")):
        assert fit(value) is value
