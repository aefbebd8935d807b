from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.demand import JobDemand
from dask_elastic.control.queues import NO_LIMIT, Queues
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Divider, fair_shares
from dask_elastic.vocab.errors import PlanningError

jobs = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(jobs, st.integers(0, 60))
def test_fair_shares_are_max_min_fair(needs, available):
    least, needed = [job[0] for job in needs], [max(job) for job in needs]
    shares = fair_shares(needed, least, available)
    assert all(low <= share <= high for low, share, high in zip(least, shares, needed, strict=True))
    if sum(least) <= available:
        assert sum(shares) == min(available, sum(needed))
    for job, share in enumerate(shares):
        for other, theirs in enumerate(shares):
            # If a job needs more, every other job has its minimum, or at most one core more than that job.
            if share < needed[job] and theirs > least[other]:
                assert theirs <= share + 1


def test_fair_shares_leave_unneeded_cores_to_other_jobs():
    assert fair_shares([3, 100, 100], [1, 1, 1], 23) == [3, 10, 10]


def test_fair_shares_grant_minimum_beyond_available_cores():
    assert fair_shares([5, 5], [2, 3], 4) == [2, 3]


@pytest.mark.parametrize("wrong", [([1], [1, 1], 3), ([-1], [1], 3), ([1], [1], -3)])
def test_fair_shares_with_invalid_arguments_raise(wrong):
    with pytest.raises(PlanningError, match="available"):
        fair_shares(*wrong)


def demand(loads, current, needed=None, keep=None, target=math.inf, overloaded=(0,)):
    loads, current = np.array(loads, dtype=float), np.array(current)
    needed = np.floor(loads).astype(int) + 1 if needed is None else np.array(needed)
    keep = np.maximum(needed, current) if keep is None else np.array(keep)
    queues = Queues(float(loads.sum()), loads, np.ones(len(loads)), np.ones(len(loads)))
    most = np.full(len(loads), NO_LIMIT)
    indices = tuple(range(len(loads)))
    return JobDemand(indices, queues, target, most, current, needed, keep, overloaded, False, True, 0.0, 1.0)


def test_divider_with_sufficient_share_grants_kept_cores():
    portion = Divider(ControlSettings()).divide(demand([1.5, 2.5], [4, 2]), 7, now=0.0)
    assert portion.cores.tolist() == [4, 3]
    assert portion.starved == 0


def test_divider_shares_scarce_cores_in_proportion_to_loads():
    portion = Divider(ControlSettings()).divide(demand([12.0, 6.0, 6.0], [1, 1, 1]), 8, now=0.0)
    assert portion.cores.tolist() == [4, 2, 2]
    assert portion.starved == 13 + 7 + 7 - 8


def test_divider_exchanges_at_once_for_large_gain_and_later_for_small_gain():
    divider = Divider(ControlSettings(exchange_gain=0.05, cooldown=5.0))
    large = demand([12.0, 4.0], [4, 4])
    assert divider.divide(large, 8, now=0.0).exchanged
    small = demand([36.0, 32.0], [17, 17])  # 18 and 16 would be 6 % faster
    assert not divider.divide(small, 34, now=3.0).exchanged
    assert not divider.divide(small, 34, now=4.0).exchanged
    assert divider.divide(small, 34, now=6.0).cores.tolist() == [18, 16]


def test_divider_ignores_gain_below_threshold():
    divider = Divider(ControlSettings(exchange_gain=0.2))
    for second in range(30):
        assert divider.divide(demand([36.0, 32.0], [17, 17]), 34, now=float(second)).cores.tolist() == [17, 17]


def test_divider_may_correct_exchange_based_on_one_snapshot_once():
    divider = Divider(ControlSettings(exchange_gain=0.05))
    assert divider.divide(demand([24.0, 8.0], [16, 16]), 32, now=0.0).exchanged
    corrected = divider.divide(demand([27.0, 5.0], [24, 8]), 32, now=1.0)
    assert corrected.exchanged
    assert corrected.cores.tolist() == [27, 5]
    assert not divider.divide(demand([30.0, 2.0], [27, 5]), 32, now=2.0).exchanged, "only one correction"


def test_divider_gives_overloaded_job_its_whole_share():
    portion = Divider(ControlSettings()).divide(demand([6.0, 2.0], [4, 12], needed=[7, 3]), 16, now=0.0)
    assert portion.cores.tolist() == [12, 4]
    calm = demand([6.0, 2.0], [4, 12], needed=[7, 3], overloaded=())
    assert int(Divider(ControlSettings()).divide(calm, 16, now=0.0).cores.sum()) == 10


def test_divider_divides_changed_share_at_once():
    portion = Divider(ControlSettings(exchange_gain=9.0)).divide(demand([6.0, 2.0], [4, 4]), 4, now=0.0)
    assert portion.cores.tolist() == [3, 1]


def test_divider_with_noise_between_two_allocations_rarely_exchanges():
    random, divider, current = np.random.default_rng(1), Divider(ControlSettings()), [12, 12]
    exchanges = 0
    for second in range(300):
        # 12 and 12 cores are as good as 13 and 11; noise is 4 % between snapshots.
        portion = divider.divide(demand(np.array([37.5, 34.5]) * random.normal(1, 0.03, 2), current), 24, float(second))
        exchanges += portion.exchanged
        current = portion.cores.tolist()
    assert exchanges <= 2


def test_divider_follows_loads_that_shift_every_few_seconds():
    """Nearly every change between snapshots is a shift here, which must not count as noise."""
    random, divider, current = np.random.default_rng(1), Divider(ControlSettings()), [12, 12]
    correct = 0
    for second in range(120):
        shares = [45.0, 27.0] if second // 4 % 2 else [30.0, 42.0]
        portion = divider.divide(demand(np.array(shares) * random.normal(1, 0.01, 2), current), 24, float(second))
        current = portion.cores.tolist()
        correct += current == ([15, 9] if second // 4 % 2 else [10, 14])
    assert correct >= 100
