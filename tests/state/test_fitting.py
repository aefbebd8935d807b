"""Single values of state, as user code sets them and as it reads them in the next batch."""

from __future__ import annotations

import datetime
from decimal import Decimal
from unittest import mock
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.state.changes import fitting
from dask_elastic.state.changes.fitting import fit_of_values
from dask_elastic.state.changes.plain_values import UNKNOWN, quick_fit
from dask_elastic.state.stored_values import to_python, to_stored
from dask_elastic.vocab.errors import StateValueError

WITHOUT_ARROW = [
    (pa.int8(), -128),
    (pa.uint64(), (1 << 64) - 1),
    (pa.float64(), 0.1),
    (pa.string(), "a"),
    (pa.large_string(), "Zürich \U0001f600"),
    (pa.bool_(), True),
    (pa.timestamp("us"), datetime.datetime(1, 1, 1)),
    (pa.timestamp("us"), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
]
BERLIN = ZoneInfo("Europe/Berlin")
QUICK = [
    (pa.int16(), np.int64(-(1 << 15))),
    (pa.uint64(), np.uint64((1 << 64) - 1)),
    (pa.float64(), 1 << 53),
    (pa.float64(), np.uint8(3)),
    (pa.float64(), np.float32(0.1)),
    (pa.float32(), 0.1),
    (pa.float32(), 3.3e38),
    (pa.bool_(), np.False_),
    (pa.duration("us"), datetime.timedelta(days=-106_751_990, microseconds=1)),
    (pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
    (pa.timestamp("us", "+05:30"), datetime.datetime(1, 1, 2, tzinfo=datetime.UTC)),
    # This local time does not exist, and the next one exists twice.
    (pa.timestamp("us", "Europe/Berlin"), datetime.datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN)),
    (pa.timestamp("us", "Europe/Berlin"), datetime.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)),
    (pa.decimal128(5, 2), Decimal("-123.40")),
]
"""Values of other types than those that are read back, or of which not all fit."""

BY_ARROW = [
    (pa.timestamp("s"), datetime.datetime(2026, 1, 1)),
    (pa.decimal128(5, 2), Decimal("1.5")),
    (pa.int64(), "12"),
]
LEFT = [
    (pa.int16(), np.int64(1 << 15)),
    (pa.float64(), (1 << 53) + 1),
    (pa.float32(), 3.5e38),
    (pa.bool_(), 1),
    (pa.duration("us"), datetime.timedelta(days=106_751_992)),
    (pa.timestamp("us", "UTC"), datetime.datetime(9999, 12, 31, 23, tzinfo=ZoneInfo("America/New_York"))),
    (pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 1)),
    (pa.decimal128(5, 2), Decimal("1234.50")),
]
"""Values that only Arrow can judge."""


@pytest.mark.parametrize(("kind", "value"), [*WITHOUT_ARROW, *QUICK, *BY_ARROW])
def test_value_is_the_same_before_and_after_it_is_stored(kind, value):
    fitted = fit_of_values(kind, "last")(value)
    stored, known = to_stored([fitted], kind)
    (read,) = to_python(stored, kind, known)
    assert (type(fitted), fitted) == (type(read), read)


@pytest.mark.parametrize(("kind", "value"), QUICK)
def test_frequent_values_become_what_arrow_makes_of_them(kind, value):
    with mock.patch.object(fitting, "_converted", side_effect=AssertionError("converted by Arrow")):
        quick = fit_of_values(kind, "last")(value)
    by_arrow = fitting._converted(value, kind, "last")
    assert (type(quick), repr(quick)) == (type(by_arrow), repr(by_arrow))


@pytest.mark.parametrize(("kind", "value"), LEFT)
def test_values_that_may_not_fit_are_left_to_arrow(kind, value):
    assert quick_fit(kind)(value) is UNKNOWN


def test_number_that_is_no_time_does_not_fit():
    """Arrow takes it, and cannot read it back."""
    with pytest.raises(StateValueError, match=f"'last' is declared as timestamp.us., which {1 << 62} does not fit"):
        fit_of_values(pa.timestamp("us"), "last")(1 << 62)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_that_cannot_be_encoded_does_not_fit(kind):
    """Elsewhere it would fail its whole batch."""
    with pytest.raises(StateValueError, match=rf"'last' is declared as {kind}, which 'a.ud800' does not fit"):
        fit_of_values(kind, "last")("a\ud800")


@pytest.mark.parametrize(("kind", "value"), WITHOUT_ARROW)
def test_usual_values_are_not_converted_one_by_one(kind, value):
    fit = fit_of_values(kind, "last")
    with mock.patch.object(fitting, "_converted", side_effect=AssertionError("converted by Arrow")):
        assert fit(value) is value
