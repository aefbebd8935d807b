"""Messages that a link between a home and its remote tasks accepts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.link import Link
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.messages import Stamp


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60))
def test_each_message_is_admitted_once_and_in_order_despite_duplicates(repeats):
    sender, receiver = Link(), Link()
    sent, admitted = [], []
    for choice in repeats:
        sent.append(sender.stamp())
        admitted += [stamp for stamp in (sent[-1], sent[choice % len(sent)]) if receiver.admit(stamp)]
    assert admitted == sent
    assert receiver.refused == receiver.repeated == len(repeats)


def test_new_incarnation_counts_from_zero_and_refuses_the_old_one():
    home, zombie = Link(), Link()
    assert home.admit(zombie.stamp())
    home.renew()
    assert home.stamp() == Stamp(1, 0)
    assert not home.admit(zombie.stamp())
    assert home.admit(Link(1).stamp())
    assert (home.stale, home.repeated) == (1, 0)


@pytest.mark.parametrize("stamp", [Stamp(0, 1), Stamp(1, 0)])
def test_missing_message_raises(stamp):
    with pytest.raises(ProtocolError, match=r"arrived, but .* is next"):
        Link().admit(stamp)
