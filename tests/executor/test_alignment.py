"""Alignment: what comes behind a barrier waits, and is released once, in order, whichever thread releases it."""

from __future__ import annotations

import threading
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor.control_records.alignment import Alignment
from dask_elastic.executor.control_records.cuts import Cuts
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.identity import ExecutorId

INPUTS = [ExecutorId("rows", index) for index in range(3)]


class Receiver:
    """Handles what inputs send as an executor's driver does."""

    def __init__(self):
        self.alignment = Alignment(INPUTS)
        self.handled = defaultdict(list)
        self.cuts = []

    def take(self, origin, item):
        """Take what an input sends."""
        if self.alignment.admit(origin, item):
            self.handle(origin, item)
        for released in self.alignment.released():
            self.handle(*released)

    def handle(self, origin, item):
        """Handle it; a checkpoint that is aligned passes at once."""
        match item:
            case Barrier():
                self.alignment.begin(item.checkpoint)
                self.align(self.alignment.barrier(item))
            case None:
                self.align(self.alignment.ended(origin))
            case _:
                self.handled[origin].append(item)

    def align(self, checkpoint):
        """Note how many rows of each input are before the barrier."""
        if checkpoint is not None:
            self.cuts.append((checkpoint, {origin: len(self.handled[origin]) for origin in INPUTS}))
            self.alignment.passed(checkpoint)


@st.composite
def sent(draw):
    """What each input sends, and in which order it arrives: rows, barriers 1 to 3, and the end."""
    streams = []
    for _ in INPUTS:
        rows = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
        stream = [number for part, count in enumerate(rows) for number in [*["row"] * count, part + 1]]
        last = draw(st.integers(0, len(stream)))
        streams.append([*stream[:last], None])
    order = draw(st.permutations([index for index, stream in enumerate(streams) for _ in stream]))
    return streams, order


@given(sent())
def test_each_cut_has_exactly_the_rows_before_the_barriers(case):
    streams, order = case
    receiver = Receiver()
    left = [iter(stream) for stream in streams]
    rows = [0] * len(INPUTS)
    before = [{} for _ in INPUTS]
    for index in order:
        item, origin = next(left[index]), INPUTS[index]
        if item == "row":
            receiver.take(origin, rows[index])
            rows[index] += 1
        elif item is None:
            receiver.take(origin, None)
        else:
            before[index][item] = rows[index]
            receiver.take(origin, Barrier(origin, item))
    for index, origin in enumerate(INPUTS):
        assert receiver.handled[origin] == list(range(rows[index])), "each row once, in order"
    for checkpoint, found in receiver.cuts:
        for index, origin in enumerate(INPUTS):
            assert found[origin] == before[index].get(checkpoint, rows[index])
    complete = [
        n for n in range(1, 5) if all(n in sent or None in stream for sent, stream in zip(before, streams, strict=True))
    ]
    begun = {n for sent in before for n in sent}
    assert [checkpoint for checkpoint, _ in receiver.cuts] == [n for n in complete if n in begun]


def test_given_up_checkpoint_releases_its_inputs_and_late_barriers_change_nothing():
    receiver = Receiver()
    north, south, _ = INPUTS
    receiver.take(north, Barrier(north, 1))
    receiver.take(north, "held")
    assert receiver.handled[north] == []
    receiver.alignment.passed(1)
    receiver.take(south, Barrier(south, 1))
    receiver.take(south, "free")
    assert receiver.handled == {north: ["held"], south: ["free"]}
    assert receiver.alignment.checkpoint is None


def test_rows_that_arrive_while_others_are_released_stay_in_order():
    alignment = Alignment(INPUTS[:1], threading.Lock)
    origin = INPUTS[0]
    alignment.barrier(Barrier(origin, 1))
    count = 20_000
    for number in range(100):
        assert not alignment.admit(origin, number)
    handled = []
    held = threading.Event()

    def bring():
        held.wait()
        for number in range(100, count):
            if alignment.admit(origin, number):
                handled.append(number)
            handled.extend(item for _, item in alignment.released())

    bringing = threading.Thread(target=bring)
    bringing.start()
    alignment.passed(1)
    held.set()
    handled.extend(item for _, item in alignment.released())
    bringing.join(30)
    handled.extend(item for _, item in alignment.released())
    assert sorted(handled) == list(range(count))


def test_cut_of_an_older_checkpoint_comes_too_late():
    cuts = Cuts()
    cuts.begin(5)
    cuts.begin(4)
    assert cuts.checkpoint == 5
    cuts.give_up(5)
    cuts.begin(5)
    assert cuts.checkpoint is None
