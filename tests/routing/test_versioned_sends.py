from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.routing.home_table import HomeTable
from dask_elastic.routing.versioned_sends import MarkDue, VersionedSends
from dask_elastic.vocab.errors import ProtocolError

HOMES = (0, 1, 1)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_each_end_mark_is_due_once_behind_all_sends_of_its_version_and_before_none(data):
    table = HomeTable.initial(HOMES)
    sends = VersionedSends(table)
    tables, in_progress, marks = [table], [], []

    def note(due):
        for mark in due:
            assert not any(used.version < mark.version for used in in_progress), "the mark overtook an old send"
            marks.append(mark)

    for step in data.draw(st.lists(st.sampled_from(["begin", "end", "switch", "repeat"]), max_size=40)):
        if step == "begin":
            in_progress.append(sends.begin())
            assert in_progress[-1] is tables[-1], "a send began under an old table"
        elif step == "end" and in_progress:
            used = in_progress.pop(data.draw(st.integers(0, len(in_progress) - 1)))
            note(sends.end(used))
        elif step == "switch":
            executor = data.draw(st.integers(0, len(HOMES) - 1))
            tables.append(tables[-1].moved(executor, tables[-1].homes[executor] + 1))
            note(sends.switch(tables[-1]))
        elif step == "repeat":
            assert sends.switch(data.draw(st.sampled_from(tables))) == []
    while in_progress:
        used = in_progress.pop()
        note(sends.end(used))
    pairs = pairwise(tables)
    assert marks == [MarkDue(e, old.homes[e], new.version) for old, new in pairs for e in new.differences(old)]


def test_instance_that_has_sent_its_end_owes_no_end_mark():
    table = HomeTable.initial(HOMES)
    sends = VersionedSends(table)
    last = sends.begin()
    assert sends.switch(table.moved(0, to=2)) == []
    sends.finish()
    assert sends.end(last) == []
    assert sends.switch(table.moved(0, to=2).moved(1, to=3)) == []


def test_send_that_never_began_cannot_end():
    sends = VersionedSends(HomeTable.initial(HOMES))
    with pytest.raises(ProtocolError, match="version 0, under which none is in progress"):
        sends.end(HomeTable.initial(HOMES))
