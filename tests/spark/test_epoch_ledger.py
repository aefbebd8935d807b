"""The epoch ledger against a simple model: each epoch is committed once, and each part is read once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.scheduler import epoch_ledger
from dask_elastic.runtime.scheduler.epoch_ledger import KEPT_IN_CHECKPOINTS, EpochLedger
from dask_elastic.runtime.scheduler.query_positions import QueryPositions
from dask_elastic.vocab.epoch import AttemptId, EpochKind, EpochOrigin, EpochRecord, StagedPart
from dask_elastic.vocab.errors import BatchMismatch, HandoffError, SourceReset

INSTANCES = 2


def parts(query: str, epoch: int, rows: list[int], attempt: str = "a", salt: int = 0) -> list[StagedPart]:
    """Return parts whose digest depends on the epoch and the rows, but not on the attempts."""
    return [
        StagedPart(AttemptId(query, epoch, number, attempt), number % INSTANCES, count, (epoch + salt) * 1000 + count)
        for number, count in enumerate(rows)
    ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from("pq"), st.integers(0, 4), st.sampled_from("ab")),
        st.tuples(st.just("take"), st.integers(0, INSTANCES - 1), st.integers(0, 3), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_epoch_is_committed_once_and_read_once_in_order(steps):
    ledger = EpochLedger(INSTANCES)
    committed: list[tuple[str, int, str]] = []
    read: list[list[int]] = [[] for _ in range(INSTANCES)]
    for kind, which, count, attempt in steps:
        if kind == "commit":
            record = ledger.commit(which, count, parts(which, count, [1, 2, 3], attempt))
            if (which, count) not in [each[:2] for each in committed]:
                committed.append((which, count, attempt))
            assert record.number == [each[:2] for each in committed].index((which, count)) + 1
        else:
            for record in ledger.pending(which)[:count]:
                read[which].append(record.number)
                ledger.acknowledge(which, record.number)
    assert ledger.epochs == len(committed)
    assert ledger.rows == 6 * len(committed)
    for query, epoch, attempt in committed:
        assert {chosen.attempt for chosen in ledger.chosen(query, epoch)} == {attempt}
    for instance in range(INSTANCES):
        left = [record.number for record in ledger.pending(instance)]
        assert read[instance] + left == list(range(1, len(committed) + 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 30))
def test_repeat_of_forgotten_epoch_is_refused_and_pending_epochs_are_kept(kept, epochs):
    ledger = EpochLedger(1, kept=kept)
    for epoch in range(epochs):
        ledger.commit("q", epoch, [StagedPart(AttemptId("q", epoch, 0, "a"), 0, 1, epoch)])
    assert len(ledger.pending(0)) == epochs
    ledger.acknowledge(0, epochs)
    for epoch in range(epochs):
        again = [StagedPart(AttemptId("q", epoch, 0, "b"), 0, 1, epoch)]
        if epoch >= epochs - kept:
            assert ledger.known("q", epoch, again)
        else:
            with pytest.raises(HandoffError, match="forgotten"):
                ledger.known("q", epoch, again)
    assert ledger.rows == epochs


def test_epoch_with_other_rows_is_a_conflict():
    ledger = EpochLedger(INSTANCES)
    ledger.commit("q", 7, parts("q", 7, [5, 6]))
    with pytest.raises(BatchMismatch, match=r"epoch 7 was committed with 11 rows .* comes again with 11 rows"):
        ledger.commit("q", 7, parts("q", 7, [5, 6], salt=1))
    with pytest.raises(BatchMismatch, match="comes again with 5 rows"):
        ledger.known("q", 7, parts("q", 7, [5]))
    assert ledger.epochs == 1


def test_same_rows_in_other_partitions_are_the_same_epoch():
    ledger = EpochLedger(1)
    one = [StagedPart(AttemptId("q", 0, 0, "a"), 0, 10, 2**64 - 5)]
    two = [StagedPart(AttemptId("q", 0, 0, "b"), 0, 4, 2**64 - 8), StagedPart(AttemptId("q", 0, 1, "b"), 0, 6, 3)]
    ledger.commit("q", 0, one)
    assert ledger.known("q", 0, two)


def test_two_attempts_of_one_partition_are_refused():
    ledger = EpochLedger(INSTANCES)
    twice = [*parts("q", 0, [1]), *parts("q", 0, [1], attempt="b")]
    with pytest.raises(HandoffError, match="two attempts of one partition"):
        ledger.commit("q", 0, twice)
    with pytest.raises(HandoffError, match="no part of query q, epoch 1"):
        ledger.commit("q", 1, parts("q", 0, [1]))
    assert ledger.epochs == 0


def test_epoch_without_rows_is_committed_and_not_pending():
    ledger = EpochLedger(INSTANCES)
    assert ledger.commit("q", 0, []).number == 1
    assert ledger.known("q", 0, [])
    assert ledger.backlog() == 0


def test_closed_ledger_refuses_new_epochs_but_accepts_repeats():
    ledger = EpochLedger(INSTANCES)
    ledger.commit("q", 0, parts("q", 0, [1]))
    ledger.close()
    assert ledger.commit("q", 0, parts("q", 0, [1], attempt="b")).number == 1
    with pytest.raises(HandoffError, match="the source has ended"):
        ledger.commit("q", 1, parts("q", 1, [1]))
    assert [record.epoch for record in ledger.pending(0)] == [0]


def test_backlog_counts_only_concerned_instances():
    ledger = EpochLedger(INSTANCES)
    ledger.commit("q", 0, parts("q", 0, [1]))
    ledger.commit("q", 1, parts("q", 1, [1]))
    second = parts("q", 2, [1, 1])[1:]
    assert (ledger.backlog(), ledger.backlog(second), ledger.pending(0, after=1)[0].epoch) == (2, 0, 1)


def streaming(kind=EpochKind.STREAM, checkpoint="/checkpoint"):
    return EpochOrigin(kind, checkpoint)


@pytest.mark.parametrize("kind", [EpochKind.STREAM, EpochKind.FOREACH_BATCH])
def test_streaming_query_that_begins_above_epoch_zero_is_refused_unless_accepted(kind):
    ledger = EpochLedger(INSTANCES, positions=QueryPositions("job 'j', source 's'"))
    gap = r"job 'j', source 's': query q sends epoch 3, but epochs 0 to 2 are not in this job.*on_reset='accept'"
    with pytest.raises(SourceReset, match=gap):
        ledger.commit("q", 3, parts("q", 3, [1]), streaming(kind))
    assert ledger.epochs == 0
    accepting = EpochLedger(INSTANCES, positions=QueryPositions(accept=True))
    assert accepting.commit("q", 3, parts("q", 3, [1]), streaming(kind)).number == 1


def test_only_functions_of_foreach_batch_may_skip_later_epochs():
    ledger = EpochLedger(INSTANCES)
    ledger.commit("q", 0, parts("q", 0, [1]), streaming())
    with pytest.raises(SourceReset, match="sends epoch 2, but epoch 1 is not in this job"):
        ledger.commit("q", 2, parts("q", 2, [1]), streaming())
    ledger.commit("q", 1, parts("q", 1, [1]), streaming())
    assert ledger.known("q", 1, parts("q", 1, [1]), streaming())
    calls = streaming(EpochKind.FOREACH_BATCH, "/other")
    for epoch in (0, 2, 7):
        ledger.commit("calls", epoch, parts("calls", epoch, [1]), calls)


def test_query_whose_checkpoint_was_deleted_is_refused_unless_accepted():
    for accept in (False, True):
        ledger = EpochLedger(INSTANCES, positions=QueryPositions(accept=accept))
        ledger.commit("old", 0, parts("old", 0, [1]), streaming())
        if accept:
            ledger.commit("new", 0, parts("new", 0, [1]), streaming())
            continue
        with pytest.raises(SourceReset, match="old has committed epochs up to 0 with the same checkpoint"):
            ledger.commit("new", 0, parts("new", 0, [1]), streaming())
        ledger.commit("new", 0, parts("new", 0, [1]), streaming(checkpoint="/elsewhere"))


def test_second_query_without_known_checkpoint_is_refused():
    ledger = EpochLedger(INSTANCES)
    ledger.commit("p", 0, parts("p", 0, [1]), streaming(checkpoint=""))
    with pytest.raises(SourceReset, match="the checkpoints of both are unknown"):
        ledger.commit("q", 0, parts("q", 0, [1]), streaming(checkpoint=""))


def test_named_batches_may_have_any_epochs():
    ledger = EpochLedger(INSTANCES)
    for epoch in (5, 2, 9):
        ledger.commit("nightly", epoch, parts("nightly", epoch, [1]))


def test_batches_without_a_name_are_forgotten_after_they_are_read():
    ledger = EpochLedger(1, kept=3)
    unnamed = EpochOrigin(EpochKind.BATCH)
    names = [f"batch-{number}" for number in range(10)]
    for name in names:
        ledger.commit(name, 0, parts(name, 0, [1]), unnamed)
    assert all(ledger.known(name, 0, parts(name, 0, [1]), unnamed) for name in names)  # nothing is read yet
    for record in ledger.pending(0):
        ledger.acknowledge(0, record.number)
    remembered = [name for name in names if ledger.chosen(name, 0)]
    assert remembered == names[-3:]
    assert ledger.epochs == ledger.rows == 10


@pytest.mark.parametrize("kind", [EpochKind.NAMED, EpochKind.STREAM])
def test_queries_that_have_not_committed_for_long_are_forgotten(kind):
    ledger = EpochLedger(1, queries=3)

    def commit(query: str, epoch: int, rows: list[int]) -> int:
        origin = EpochOrigin(kind, f"/checkpoints/{query}" if kind.streaming else "")
        return ledger.commit(query, epoch, [StagedPart(AttemptId(query, epoch, 0, "a"), 0, *rows)], origin).number

    waits = commit("waits", 0, [1, 5])
    for number in range(50):
        commit(f"query {number}", 0, [1, 7])
        ledger.acknowledge(0, 0)
    assert len(ledger._queries) == 51, "nothing has been read: every query has an epoch that waits"
    ledger.acknowledge(0, waits + 48)
    assert [*ledger._queries] == ["query 47", "query 48", "query 49"]
    assert ledger.snapshot().positions.newest.keys() <= ledger._queries.keys()
    assert len(ledger.snapshot().positions.queries) == (3 if kind.streaming else 0)
    assert len(ledger.snapshot().records) == 3

    commit("query 48", 1, [1, 8])
    ledger.acknowledge(0, ledger.epochs)
    commit("new", 0, [1, 9])
    assert [*ledger._queries] == ["query 49", "query 48", "new"]
    assert ledger.is_committed("query 48", 0)
    assert not ledger.is_committed("query 47", 0)


class CountedRecord(EpochRecord):
    """A record that counts how often a record is read: the work of a ledger for its records."""

    reads = 0

    def __getattribute__(self, name):
        CountedRecord.reads += 1
        return super().__getattribute__(name)


def work(action, *arguments):
    """Return how often records are read while something is done."""
    before = CountedRecord.reads
    action(*arguments)
    return CountedRecord.reads - before


def add_epochs(ledger, query, count, begin=0):
    """Commit epochs of a streaming query, and have all instances read them."""
    for epoch in range(begin, begin + count):
        origin = streaming(checkpoint=f"/checkpoints/{query}")
        rows = tuple(parts(query, epoch, [1] * ledger.instances))
        ledger.add(CountedRecord(ledger.next_number, query, epoch, ledger.instances, 0, rows, origin))
        for instance in range(ledger.instances):
            ledger.acknowledge(instance, ledger.epochs)
        assert ledger.backlog() == 0


@pytest.mark.parametrize("queries", [1, 20])
def test_work_per_epoch_is_the_same_however_many_epochs_a_checkpoint_covers(queries):
    def works(count):
        ledger = EpochLedger(INSTANCES, kept=5, durable=True)
        adding = sum(work(add_epochs, ledger, f"q{number}", count // queries) for number in range(queries))
        return adding, work(ledger.cover, [ledger.epochs] * INSTANCES)

    (adding, covering), (adding_twice, covering_twice) = works(200), works(400)
    assert adding_twice < 2.5 * adding
    assert covering_twice < 2.5 * covering


class CountedName(str):
    """The name of a query that counts comparisons."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedName.compared += 1
        return str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other


def test_work_per_query_is_the_same_however_many_queries_are_forgotten_at_once():
    def comparisons(count):
        ledger = EpochLedger(1, durable=True, queries=3)
        for number in range(count):
            add_epochs(ledger, CountedName(f"q{number}"), 1)
        before = CountedName.compared
        ledger.cover([None])
        assert len(ledger._queries) == len(ledger.positions.marks().queries) == 3
        return CountedName.compared - before

    once, twice = comparisons(200), comparisons(400)
    assert twice <= 2.5 * once


def test_checkpoint_that_another_query_has_written_with_since_stays_known():
    ledger = EpochLedger(1, positions=QueryPositions(accept=True), queries=2)
    for query in ("old", "new"):
        ledger.commit(query, 0, parts(query, 0, [1]), streaming())
        ledger.acknowledge(0, ledger.epochs)
    for query in ("third", "new"):
        ledger.commit(query, 1, parts(query, 1, [1]), streaming(checkpoint=f"/{query}"))
        ledger.acknowledge(0, ledger.epochs)
    assert ledger.positions.marks().queries == {"/checkpoint": "new", "/third": "third", "/new": "new"}


def test_work_of_a_snapshot_depends_on_the_number_of_queries_only():
    queries = 4
    ledger = EpochLedger(INSTANCES)
    for begin in (0, 3 * KEPT_IN_CHECKPOINTS):
        for number in range(queries):
            add_epochs(ledger, f"q{number}", 3 * KEPT_IN_CHECKPOINTS, begin)
        assert work(ledger.snapshot) <= queries
    assert len(ledger.snapshot().records) == queries * KEPT_IN_CHECKPOINTS


def test_snapshot_has_older_epochs_only_of_queries_that_have_committed_last(monkeypatch):
    monkeypatch.setattr(epoch_ledger, "KEPT_OF_ALL_QUERIES", 20)
    ledger = EpochLedger(INSTANCES)
    for number in range(30):
        add_epochs(ledger, f"q{number}", 10)
    snapshot = ledger.snapshot()
    assert len(snapshot.records) == 28 + 2 * 10
    again = EpochLedger(INSTANCES)
    again.restore(snapshot.slim(), [])
    assert [*again._queries] == [*ledger._queries]
    assert (again.newest.query, again.newest.epoch) == ("q29", 9)

    def known(query, epoch):
        rows = [part._replace(digest=0) for part in parts(query, epoch, [1] * INSTANCES)]
        return again.known(query, epoch, rows, streaming(checkpoint=f"/checkpoints/{query}"))

    assert all(known("q28", epoch) for epoch in range(10))
    for number in range(30):
        assert known(f"q{number}", 9), "Spark repeats the newest epoch of a query"
        assert not known(f"q{number}", 10)
    with pytest.raises(HandoffError, match="query q27, epoch 8: so old that the ledger has forgotten"):
        known("q27", 8)


def test_named_epochs_in_any_order_are_refused_only_up_to_the_highest_one_that_is_forgotten():
    ledger = EpochLedger(1, kept=2)
    for epoch in (5, 2, 9, 7):
        ledger.commit("nightly", epoch, parts("nightly", epoch, [1]))
        ledger.acknowledge(0, ledger.epochs)
    again = EpochLedger(1, kept=2)
    again.restore(ledger.snapshot().slim(), [])
    for each in (ledger, again):
        assert not each.known("nightly", 6, parts("nightly", 6, [1]))
        assert each.known("nightly", 9, parts("nightly", 9, [1]))
        with pytest.raises(HandoffError, match="forgotten"):
            each.known("nightly", 4, parts("nightly", 4, [1]))
