"""The flow window follows the bytes processed within `queue_time`, independent of bursts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.meters import FlowWindow

LIMIT = 2**25


def feed(window, seconds, rate, since=0.0, every=0.01):
    for tick in range(1, round(seconds / every) + 1):
        window.released(int(rate * every), since + tick * every)
    return since + seconds


def test_flow_window_converges_to_bytes_processed_in_queue_time():
    window = FlowWindow(LIMIT, 0.2)
    feed(window, 2.0, rate=50_000)
    assert abs(window.nbytes - 10_000) <= 1_000


def test_flow_window_too_small_grows_within_few_round_trips():
    window, now = FlowWindow(LIMIT, 0.1), 0.0
    # All bytes in flight are processed after a millisecond.
    for _ in range(12):
        now += 0.001
        window.released(window.nbytes, now)
    assert window.nbytes == LIMIT


def test_flow_window_after_bursts_grows_by_at_most_bytes_in_flight():
    window = FlowWindow(LIMIT, 0.2)
    now = feed(window, 2.0, rate=50_000)
    before = window.nbytes
    # Credit returns in bursts: nothing for a tenth of a second, then all of it at once.
    for _ in range(20):
        now += 0.1
        window.released(5_000, now)
    assert window.nbytes <= 1.6 * before


def test_flow_window_shrinks_with_slower_receiver_without_stopping_sender():
    window = FlowWindow(LIMIT, 0.1)
    now = feed(window, 1.0, rate=1_000_000)
    used, passed = window.nbytes, []
    for _ in range(600):
        now += 0.01
        window.released(1_000, now)
        used -= 1_000
        room = max(0, window.nbytes - used)
        passed.append(room)
        used += room
    assert window.nbytes <= 11_000
    # In any second the sender may send three quarters of what is processed.
    assert np.convolve(passed, np.ones(100), mode="valid").min() >= 0.7 * 100_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 0.5)), max_size=60), st.floats(0.01, 1.0))
def test_flow_window_stays_between_one_byte_and_its_limit(releases, queue_time):
    window, now = FlowWindow(200_000, queue_time), 0.0
    for nbytes, passed in releases:
        now += passed
        window.released(nbytes, now)
        assert 1 <= window.nbytes <= 200_000


def saturate(window, seconds, rate, wants_more, since=0.0, every=0.01):
    """Release credit at a rate while the sender is held back."""
    for tick in range(1, round(seconds / every) + 1):
        window.held_back()
        window.released(int(rate * every), since + tick * every, wants_more)
    return since + seconds


def test_time_of_the_window_grows_while_the_receiver_wants_larger_batches():
    window = FlowWindow(LIMIT, 0.1)
    saturate(window, 5.0, rate=50_000, wants_more=True)
    assert window.stretch >= 8
    assert window.nbytes >= 0.9 * window.stretch * 0.1 * 50_000


def test_time_of_the_window_stays_if_the_receiver_wants_no_larger_batches():
    window = FlowWindow(LIMIT, 0.1)
    saturate(window, 5.0, rate=50_000, wants_more=False)
    assert window.stretch == 1


def test_time_of_the_window_stays_while_the_sender_is_not_held_back():
    window, now = FlowWindow(LIMIT, 0.1), 0.0
    for _ in range(500):
        now += 0.01
        window.released(500, now, wanted_more=True)
    assert window.stretch == 1


def test_longer_time_is_given_up_when_it_is_not_needed():
    window = FlowWindow(LIMIT, 0.1)
    now = saturate(window, 5.0, rate=50_000, wants_more=True)
    now = saturate(window, 60.0, rate=50_000, wants_more=False, since=now)
    assert window.stretch == 1
    saturate(window, 1.0, rate=50_000, wants_more=False, since=now)
    assert window.nbytes <= 1.1 * 5_000
