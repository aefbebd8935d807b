from __future__ import annotations

import pytest

from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.errors import PlanningError


def test_control_settings_defaults_are_valid():
    assert ControlSettings().headroom < ControlSettings().release_headroom


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cooldown": -1.0}, "cooldown is -1.0: give a finite number of 0 or more"),
        ({"cooldown": float("nan")}, "cooldown is nan"),
        ({"release_after": float("inf")}, "release_after is inf"),
        ({"growth": 1.0}, "growth is 1.0: give a finite number above 1"),
        ({"drain_within": 0.0}, "drain_within is 0.0: give a finite number above 0"),
        ({"budget_bytes": 0}, "budget_bytes is 0"),
        ({"saturation": 1.5}, "saturation is 1.5: give a fraction of at most 1"),
        ({"headroom": 0.5}, "headroom is 0.5, release_headroom 0.2"),
    ],
)
def test_control_settings_out_of_range_raise_with_name(change, message):
    with pytest.raises(PlanningError, match=message.replace(".", r"\.")):
        ControlSettings(**change)


def test_control_settings_accept_zero_times_and_headroom():
    assert ControlSettings(cooldown=0.0, release_after=0.0, headroom=0.0).cooldown == 0
