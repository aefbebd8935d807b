"""Of two handoffs of one micro-batch into one source, the second is refused unless it has a name of its own."""

from __future__ import annotations

import pytest

from dask_elastic.spark.micro_batch_sends import Destination, MicroBatch, MicroBatchSends
from dask_elastic.vocab.errors import HandoffError

BATCH = MicroBatch("q", "first run", 3)
ROWS = Destination("flights", "1", "rows", "q")


def send(sends, batch=BATCH, destination=ROWS):
    with sends.once(batch, destination):
        pass


def test_second_handoff_of_a_micro_batch_is_refused_and_names_the_option():
    sends = MicroBatchSends()
    send(sends)
    with pytest.raises(HandoffError, match=r"job 'flights', source 'rows': .* epoch 3 .* query='late'"):
        send(sends)


def test_handoffs_to_other_sources_or_under_other_names_are_accepted():
    sends = MicroBatchSends()
    send(sends)
    send(sends, destination=ROWS._replace(source="others"))
    send(sends, destination=ROWS._replace(query="late"))
    send(sends, destination=ROWS._replace(run="2"))


def test_later_micro_batches_and_later_runs_of_a_query_are_accepted():
    sends = MicroBatchSends()
    for batch in (BATCH, BATCH._replace(run="second run"), BATCH._replace(epoch=4), BATCH._replace(query="p")):
        send(sends, batch)


def test_failed_handoff_may_be_repeated():
    sends = MicroBatchSends()
    with pytest.raises(OSError, match="lost"), sends.once(BATCH, ROWS):
        raise OSError("lost")
    send(sends)
