"""When shards leave their executor's home, and when they return."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.planning.light_load import FIRST_PATIENCE, LONGEST_PATIENCE, RETURN_SHARE, LightLoad
from dask_elastic.vocab.errors import PlanningError

BOUND = 0.2
LOW, BETWEEN, HIGH = 0.9 * RETURN_SHARE * BOUND, 0.9 * BOUND, 1.1 * BOUND


def seconds_until_return(light, since, load=LOW):
    """Look twice a second at a load; returns the seconds until the shards belong at home."""
    now = since
    while not light.at_home:
        now += 0.5
        assert now - since <= 2 * LONGEST_PATIENCE, "the shards never return"
        light.look(load, now)
    return now - since


def test_shards_leave_as_soon_as_the_load_is_above_the_bound():
    light = LightLoad(BOUND, at_home=True)
    light.look(BOUND, 0.0)
    assert light.at_home
    light.look(HIGH, 0.5)
    assert not light.at_home


def test_shards_return_after_a_time_of_low_load():
    light = LightLoad(BOUND, at_home=False)
    assert seconds_until_return(light, 0.0) == pytest.approx(FIRST_PATIENCE, abs=0.5)


def test_shards_do_not_return_while_the_load_is_between_the_bounds():
    light = LightLoad(BOUND, at_home=False)
    for look in range(1_000):
        light.look(BETWEEN, look / 2)
    assert not light.at_home


def test_load_between_the_bounds_ends_the_time_of_low_load():
    light = LightLoad(BOUND, at_home=False)
    for look in range(1_000):
        light.look(BETWEEN if look % 8 == 0 else LOW, look / 2)
    assert not light.at_home


def test_each_return_takes_twice_as_long_up_to_a_limit():
    light, now, waits = LightLoad(BOUND, at_home=True), 0.0, []
    for _ in range(10):
        light.look(HIGH, now)
        waits.append(seconds_until_return(light, now))
        now += waits[-1]
    assert [round(wait / FIRST_PATIENCE) for wait in waits[:4]] == [1, 2, 4, 8]
    assert waits[-1] == pytest.approx(LONGEST_PATIENCE, abs=0.5)


def test_load_that_was_high_is_light_at_once_while_no_shard_is_away():
    light = LightLoad(BOUND, at_home=True)
    for second in range(20):
        light.look(HIGH, float(second), away=False)
        assert not light.at_home
        light.look(BETWEEN, second + 0.5, away=False)
        assert light.at_home
    light.leave()
    assert seconds_until_return(light, 20.0) == pytest.approx(FIRST_PATIENCE, abs=0.5)


def test_unknown_load_changes_nothing():
    light = LightLoad(BOUND, at_home=False)
    light.look(LOW, 0.0)
    light.look(None, 1.0)
    light.look(LOW, FIRST_PATIENCE)
    assert light.at_home
    light.look(None, FIRST_PATIENCE + 1)
    assert light.at_home


def test_no_load_is_light_without_a_bound():
    light = LightLoad(0, at_home=True)
    for second in range(100):
        light.look(0.0, float(second))
        assert not light.at_home


@given(st.lists(st.sampled_from([None, LOW, BETWEEN, HIGH]), max_size=400))
def test_shards_return_rarely_whatever_the_load_does(loads):
    light, returns, before = LightLoad(BOUND, at_home=True), 0, True
    for look, load in enumerate(loads):
        light.look(load, look / 2)
        returns += light.at_home and not before
        before = light.at_home
    # The waits before n returns are at least 1, 2, 4, ... times the first one.
    assert FIRST_PATIENCE * (2**returns - 1) <= len(loads) / 2


@pytest.mark.parametrize("bound", [-0.1, float("nan"), float("inf"), "0.3", True])
def test_wrong_bound_is_refused(bound):
    with pytest.raises(PlanningError, match="busy cores"):
        LightLoad(bound, at_home=True)
