"""Times of rows as microseconds: those that have none are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dask_elastic.executor.windows.event_times import microseconds


@pytest.mark.parametrize(("unit", "factor"), [("s", 1_000_000), ("ms", 1_000)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_times_beyond_64_bits_of_microseconds_are_refused_not_wrapped(unit, factor, sign):
    most = sign * ((2**63 - 1) // factor)
    assert microseconds(pa.array([most], pa.timestamp(unit)), "at").tolist() == [most * factor]
    with pytest.raises(ValueError, match=r"the time 'at' is .* beyond") as caught:
        microseconds(pa.array([0, most + sign], pa.timestamp(unit)), "at")
    assert caught.value.row == 1
