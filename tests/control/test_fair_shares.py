from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.demand import Demand
from dask_elastic.control.queues import NO_LIMIT, Queues
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Divider, fair_shares
from dask_elastic.vocab.errors import PlanningError

jobs = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(jobs, st.integers(0, 60))
def test_shares_are_max_min_fair(needs, available):
    least, needed = [job[0] for job in needs], [max(job) for job in needs]
    shares = fair_shares(needed, least, available)
    assert all(low <= share <= high for low, share, high in zip(least, shares, needed, strict=True))
    if sum(least) <= available:
        assert sum(shares) == min(available, sum(needed))
    for job, share in enumerate(shares):
        for other, theirs in enumerate(shares):
            # Who lacks cores could be given one only by somebody who has no more than it would have.
            if share < needed[job] and theirs > least[other]:
                assert theirs <= share + 1


def test_who_needs_less_leaves_it_to_the_others():
    assert fair_shares([3, 100, 100], [1, 1, 1], 23) == [3, 10, 10]


def test_the_least_is_given_even_if_it_is_not_there():
    assert fair_shares([5, 5], [2, 3], 4) == [2, 3]


@pytest.mark.parametrize("wrong", [([1], [1, 1], 3), ([-1], [1], 3), ([1], [1], -3)])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(PlanningError, match="available"):
        fair_shares(*wrong)


def demand(loads, current, needed=None, keep=None, target=math.inf, overloaded=(0,)):
    loads, current = np.array(loads, dtype=float), np.array(current)
    needed = np.floor(loads).astype(int) + 1 if needed is None else np.array(needed)
    keep = np.maximum(needed, current) if keep is None else np.array(keep)
    queues = Queues(float(loads.sum()), loads, np.ones(len(loads)), np.ones(len(loads)))
    most = np.full(len(loads), NO_LIMIT)
    places = tuple(range(len(loads)))
    return Demand(places, queues, target, most, current, needed, keep, overloaded, False, True, 0.0, 1.0)


def test_a_job_that_gets_all_it_keeps_keeps_it():
    portion = Divider(ControlSettings()).divide(demand([1.5, 2.5], [4, 2]), 7, now=0.0)
    assert portion.cores.tolist() == [4, 3]
    assert portion.starved == 0


def test_too_few_cores_are_shared_in_proportion():
    portion = Divider(ControlSettings()).divide(demand([12.0, 6.0, 6.0], [1, 1, 1]), 8, now=0.0)
    assert portion.cores.tolist() == [4, 2, 2]
    assert portion.starved == 13 + 7 + 7 - 8


def test_a_small_gain_waits_and_a_large_one_does_not():
    divider = Divider(ControlSettings(exchange_gain=0.05, cooldown=5.0))
    large = demand([12.0, 4.0], [4, 4])
    assert divider.divide(large, 8, now=0.0).exchanged
    small = demand([36.0, 32.0], [17, 17])  # 18 and 16 would be 6 % faster
    assert not divider.divide(small, 34, now=3.0).exchanged
    assert not divider.divide(small, 34, now=4.0).exchanged
    assert divider.divide(small, 34, now=6.0).cores.tolist() == [18, 16]


def test_a_gain_below_the_threshold_never_counts():
    divider = Divider(ControlSettings(exchange_gain=0.2))
    for second in range(30):
        assert divider.divide(demand([36.0, 32.0], [17, 17]), 34, now=float(second)).cores.tolist() == [17, 17]


def test_what_was_judged_by_one_moment_may_be_corrected():
    divider = Divider(ControlSettings(exchange_gain=0.05))
    assert divider.divide(demand([24.0, 8.0], [16, 16]), 32, now=0.0).exchanged
    corrected = divider.divide(demand([27.0, 5.0], [24, 8]), 32, now=1.0)
    assert corrected.exchanged
    assert corrected.cores.tolist() == [27, 5]
    assert not divider.divide(demand([30.0, 2.0], [27, 5]), 32, now=2.0).exchanged, "only one correction"


def test_an_overloaded_job_uses_all_of_its_share():
    portion = Divider(ControlSettings()).divide(demand([6.0, 2.0], [4, 12], needed=[7, 3]), 16, now=0.0)
    assert portion.cores.tolist() == [12, 4]
    calm = demand([6.0, 2.0], [4, 12], needed=[7, 3], overloaded=())
    assert int(Divider(ControlSettings()).divide(calm, 16, now=0.0).cores.sum()) == 10


def test_a_share_that_changes_is_put_to_the_best_use_at_once():
    portion = Divider(ControlSettings(exchange_gain=9.0)).divide(demand([6.0, 2.0], [4, 4]), 4, now=0.0)
    assert portion.cores.tolist() == [3, 1]


def test_loads_between_two_allocations_exchange_nothing_however_long_it_takes():
    random, divider, current = np.random.default_rng(1), Divider(ControlSettings()), [12, 12]
    exchanges = 0
    for second in range(300):
        # 12 and 12 cores are as good as 13 and 11; noise is 4 % from moment to moment.
        portion = divider.divide(demand(np.array([37.5, 34.5]) * random.normal(1, 0.03, 2), current), 24, float(second))
        exchanges += portion.exchanged
        current = portion.cores.tolist()
    assert exchanges <= 2


def test_loads_that_shift_every_few_seconds_are_followed():
    """Nearly every change is a shift then: they are not to be taken for noise."""
    random, divider, current = np.random.default_rng(1), Divider(ControlSettings()), [12, 12]
    right = 0
    for second in range(120):
        shares = [45.0, 27.0] if second // 4 % 2 else [30.0, 42.0]
        portion = divider.divide(demand(np.array(shares) * random.normal(1, 0.01, 2), current), 24, float(second))
        current = portion.cores.tolist()
        right += current == ([15, 9] if second // 4 % 2 else [10, 14])
    assert right >= 100
