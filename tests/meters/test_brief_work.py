"""Work is brief if its batches are small, take little time, and compute for most of it."""

from __future__ import annotations

import pytest

from dask_elastic.meters.brief_work import BRIEF_SECONDS, FEW_ROWS, MEASURED, RETRIED, BriefWork


def measured(busy, cpu, count=20):
    work = BriefWork()
    for _ in range(count):
        work.add(busy, cpu)
    return work


def test_unmeasured_work_is_expected_to_be_brief_if_its_rows_are_few():
    assert BriefWork().expects(FEW_ROWS)
    assert not BriefWork().expects(FEW_ROWS + 1)


def test_work_that_computes_for_a_moment_is_brief():
    assert measured(busy=BRIEF_SECONDS, cpu=BRIEF_SECONDS * 0.9).expects(1)


@pytest.mark.parametrize(
    ("busy", "cpu"), [(2 * BRIEF_SECONDS, 2 * BRIEF_SECONDS), (BRIEF_SECONDS / 2, 0.0)], ids=["long", "blocking"]
)
def test_long_and_blocking_work_is_not_brief(busy, cpu):
    assert not measured(busy, cpu).expects(1)


def test_single_long_batches_change_nothing():
    work = measured(busy=1e-4, cpu=1e-4)
    for _ in range(30):
        work.add(busy=0.1, cpu=1e-4)
        assert work.expects(1)
        for _ in range(3):
            work.add(busy=1e-4, cpu=1e-4)


def test_work_that_has_become_brief_is_found_by_measuring_again():
    work = measured(busy=0.1, cpu=1e-4)
    for _ in range(20 * RETRIED):
        if work.expects(1):
            work.add(busy=1e-4, cpu=1e-4)
    assert all(work.expects(1) for _ in range(RETRIED))


def test_one_of_a_few_brief_batches_is_measured_and_each_one_after_a_long_batch():
    work = BriefWork()
    assert [work.measures() for _ in range(2 * MEASURED)] == 2 * [True, *[False] * (MEASURED - 1)]
    work.add(busy=0.002, cpu=0.0)
    assert all(work.measures() for _ in range(2 * MEASURED))
    for _ in range(100):
        work.add(busy=1e-4, cpu=1e-4)
    assert sum(work.measures() for _ in range(2 * MEASURED)) == 2
