"""The choice between slices and instances in a running job: by cost, within a limit, without changing to and fro."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.windows.sharing_choice import AGREEING, Agreement, SharingLoad, choose_sharing, kept_per_key
from dask_elastic.windows.unit_costs import UnitCosts

SECOND = 1_000_000
HOPPING = Windowing((EventWindow(0, 60 * SECOND, 10 * SECOND),), ("at",))
KEYS = 1000
EXPENSIVE = UnitCosts(merge=1e-5)
"""Merges that cost as much as adding hundreds of rows, such as those of Python objects."""


def choice(rows, current="slices", costs=EXPENSIVE, other=0.0, **options):
    load = SharingLoad(rows, KEYS * kept_per_key(HOPPING, current), costs, other)
    return choose_sharing(HOPPING, load, current, **options)


def test_many_rows_per_slice_share_and_few_do_not():
    assert choice(100_000, "instances").partials == "slices"
    assert choice(1, "slices").partials == "instances"


def test_slices_are_kept_at_any_rate_if_closing_instances_costs_more_than_merging():
    assert all(choice(10.0**power, costs=UnitCosts()).partials == "slices" for power in range(-3, 8))


def test_plan_that_saves_little_of_all_work_is_not_taken():
    assert choice(100_000, "instances").partials == "slices"
    found = choice(100_000, "instances", other=1e-6)
    assert found.partials == "instances"
    assert found.reason == "the other plan saves less than 25%"


def test_measured_keys_take_the_place_of_kept_partials():
    load = SharingLoad(rows=1000, partials=10**9, costs=EXPENSIVE, keys=1.0)
    assert choose_sharing(HOPPING, load, "slices").partials == "slices"


@pytest.mark.parametrize("costs", [UnitCosts(merge=1.0, formed=1e-9), UnitCosts(merge=1e-9, formed=1.0)])
def test_measured_results_of_slices_take_the_place_of_merges(costs):
    assert choice(10_000, costs=costs).partials == ("slices" if costs.formed < 1e-6 else "instances")


@pytest.mark.parametrize("current", ["slices", "instances"])
def test_costs_do_not_depend_on_the_present_plan(current):
    found = choice(500, current)
    assert (found.slices, found.instances) == pytest.approx((choice(500).slices, choice(500).instances))


def test_neither_plan_is_left_between_the_two_thresholds():
    rates = [2.0**power for power in range(-5, 25)]
    kept = [rate for rate in rates if all(choice(rate, plan).partials == plan for plan in ("slices", "instances"))]
    left = [rate for rate in rates if all(choice(rate, plan).partials != plan for plan in ("slices", "instances"))]
    assert not left, "two plans that each save a share of the other would change for ever"
    dense = [1.02**power for power in range(-200, 1000)]
    assert kept or any(
        all(choice(rate, plan).partials == plan for plan in ("slices", "instances")) for rate in dense
    ), "small changes of the load change the plan"


def test_updates_of_many_keys_are_those_of_instances_and_of_few_those_of_slices():
    updated = replace(HOPPING, emit="updates")
    for lookups, wanted in ((0.01, "slices"), (10.0, "instances")):
        load = SharingLoad(rows=10_000, partials=0, keys=10.0, lookups=lookups)
        assert {choose_sharing(updated, load, current).partials for current in ("slices", "instances")} == {wanted}


def test_limit_excludes_slices_that_cost_less():
    assert choice(100_000, close_limit=1.0).partials == "slices"
    found = choice(100_000, close_limit=1e-9)
    assert found.partials == "instances"
    assert "more than the limit" in found.reason


def test_choice_passes_when_it_is_the_same_for_some_periods():
    agreement = Agreement()
    for _ in range(5):
        assert not any(agreement.passes("instances", "slices") for _ in range(AGREEING - 1))
        assert not agreement.passes("slices", "slices")
    assert [agreement.passes("instances", "slices") for _ in range(AGREEING)][-1]
    assert not agreement.passes("slices", "instances"), "it begins to count anew after a change"
