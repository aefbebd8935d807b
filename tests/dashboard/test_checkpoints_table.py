"""The table of checkpoints on the page, for known checkpoints."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dask_elastic.control.job_flow import JobFlow
from dask_elastic.dashboard.checkpoints.table import SHOWN, CheckpointsTable
from dask_elastic.dashboard.checkpoints.taken import TakenCheckpoints
from dask_elastic.dashboard.cluster_view import JobCard
from dask_elastic.dashboard.conditions import conditions
from dask_elastic.dashboard.page import ElasticPage
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus

COMPLETE = CheckpointDescription(7, began=60.0, seconds=0.25, nbytes=2048, held=0.01)
FAILED = CheckpointDescription(8, began=61.0, seconds=0.5, error="no <space>")
STATUS = CheckpointStatus("/<folder>", 7, 2.5, COMPLETE, FAILED, given_up_count=3, restarts=1)
CARD = JobCard("flights", "running", began=50.0)


@pytest.fixture
def table():
    return CheckpointsTable()


def test_table_has_newest_checkpoint_first_with_error_of_one_given_up(table):
    table.update(TakenCheckpoints(STATUS, (COMPLETE, FAILED)))
    text = table.root.text
    assert table.root.visible
    cells = [cell.split("</td>")[0] for cell in text.split('<td class="number">')[1:]]
    assert cells == ["500 ms", "–", "–", "250 ms", "2 KiB", "10 ms"]
    assert text.index("<td>8</td>") < text.index("<td>7</td>")
    assert '<span class="badge bad">given up</span> no &lt;space&gt;' in text
    standing = "A restart continues from checkpoint 7, which began 2.5 s ago; 1 restart; 3 given up."
    assert f"{standing} Folder: /&lt;folder&gt;" in text


def test_age_of_an_ended_job_is_the_one_at_its_end(table):
    table.update(TakenCheckpoints(replace(STATUS, ended=True), (COMPLETE, FAILED)))
    assert "A restart continues from checkpoint 7, which began 2.5 s before the job ended; 1 restart" in table.root.text


@pytest.mark.parametrize(("number", "said"), [(0, "None is complete yet."), (7, "Resumed from checkpoint 7.")])
def test_job_that_has_completed_no_checkpoint_has_no_rows(table, number, said):
    table.update(TakenCheckpoints(CheckpointStatus("/folder", number, None, None, None, 0, 0)))
    assert said in table.root.text
    assert "<table>" not in table.root.text


def test_table_has_the_newest_of_many_checkpoints(table):
    taken = tuple(replace(COMPLETE, number=number) for number in range(1, 101))
    table.update(TakenCheckpoints(STATUS, taken))
    shown = [int(number) for number in re.findall(r"<tr><td>(\d+)</td>", table.root.text)]
    assert shown == list(range(100, 100 - SHOWN, -1))


def test_checkpoint_given_up_after_the_newest_complete_one_is_a_notice():
    def labels(standing, **changes):
        card = replace(CARD, checkpoints=lambda: TakenCheckpoints(standing), **changes)
        return {one.label: one.sentence for one in conditions(card, None, JobFlow())}

    sentence = "Checkpoint 8 was given up, so a restart would continue from checkpoint 7: no <space>"
    assert labels(STATUS) == {"checkpoint failed": sentence}
    assert "from its beginning, as none is complete" in labels(replace(STATUS, number=0))["checkpoint failed"]
    assert labels(replace(STATUS, number=9)) == {}
    assert labels(STATUS, status="finished") == {}


def test_page_shows_the_table_for_jobs_with_checkpoints_only(known):
    known.add(known.job({"per_route": [{0: 1}]}))
    page = ElasticPage(known.view())
    assert not page.checkpoints.root.visible
    with_checkpoints = replace(known.cards["flights"], checkpoints=lambda: TakenCheckpoints(STATUS, (COMPLETE,)))
    known.cards["flights"] = with_checkpoints
    page.update()
    assert page.checkpoints.root.visible
    assert page.checkpoints.root in page.roots
    known.cards["flights"] = replace(with_checkpoints, checkpoints=lambda: None)
    page.update()
    assert not page.checkpoints.root.visible
