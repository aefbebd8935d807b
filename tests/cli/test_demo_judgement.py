from __future__ import annotations

from dataclasses import replace

import pytest

from dask_elastic.cli.demo.checks import check_table
from dask_elastic.cli.demo.closing_table import closing_table
from dask_elastic.cli.demo.judgement import judge
from dask_elastic.cli.demo.outcome import Outcome
from dask_elastic.cli.terminal.console import plain_text

ROWS = 8_000
STATIC = Outcome(16, 0.25, 1.6, 2.1, 180.0, ROWS, 0, 3.1)
ELASTIC = Outcome(16, 0.9375, 0.05, 0.1, 110.0, ROWS, 120, 2.5)


def failed(static, elastic):
    return [check.what for check in judge(static, elastic, ROWS) if not check.passed]


def test_elastic_job_within_its_target_passes():
    assert failed(STATIC, ELASTIC) == []
    assert failed(replace(STATIC, share=0.6), replace(ELASTIC, share=0.8)) == []


def test_elastic_job_below_four_fifths_fails():
    assert failed(STATIC, replace(ELASTIC, share=0.79)) == ["elastic: seconds within the target"]


def test_elastic_job_less_than_twenty_points_above_static_fails():
    assert failed(replace(STATIC, share=0.75), ELASTIC) == ["elastic: more such seconds than static"]
    assert failed(ELASTIC, ELASTIC) == ["elastic: more such seconds than static"]


@pytest.mark.parametrize("unmeasured", [(True, False), (False, True), (True, True)])
def test_job_without_judged_seconds_fails(unmeasured):
    empty = {"seconds": 0, "share": None, "mean": None, "p99": None}
    static, elastic = (
        replace(one, **empty) if missing else one for one, missing in zip((STATIC, ELASTIC), unmeasured, strict=True)
    )
    assert len(failed(static, elastic)) == 2
    assert "–" in plain_text(closing_table(static, elastic, 0.2, ROWS))


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_flights_that_were_not_counted_once_fail(rows):
    assert failed(replace(STATIC, rows=rows), ELASTIC) == ["static: flights counted"]
    assert failed(STATIC, replace(ELASTIC, rows=rows)) == ["elastic: flights counted"]


def test_job_that_has_not_recovered_fails():
    assert failed(replace(STATIC, recovery=None), ELASTIC) == ["static: recovered after a killed worker"]
    assert failed(STATIC, replace(ELASTIC, recovery=None)) == ["elastic: recovered after a killed worker"]


def test_missed_target_is_not_called_a_wrong_result():
    missed = plain_text(check_table(judge(STATIC, replace(ELASTIC, share=0.5), ROWS), "pandas"))
    assert "MISSED   50% of 16; 80% at least" in missed
    assert "WRONG" not in missed
    assert "WRONG" in plain_text(check_table(judge(STATIC, replace(ELASTIC, rows=1), ROWS), "pandas"))


def test_closing_table_has_a_column_per_job_and_one_for_the_target():
    lines = plain_text(closing_table(STATIC, ELASTIC, 0.2, ROWS)).splitlines()
    cells = {row.split("  ")[0]: row.split()[-1] for row in lines[1:]}
    assert list(cells) == [
        "seconds within the target", "mean latency", "p99 in the median second", "core-seconds", "shard moves",
        "flights counted", "recovered after a killed worker in",
    ]  # fmt: skip
    assert cells["flights counted"] == "8,000"
    assert lines[-1].split()[-5:-1] == ["3.10", "s", "2.50", "s"]
    [head, share, *_] = lines
    assert head.split() == ["static", "elastic", "target"]
    assert share.split()[4:6] == ["25%", "94%"]
