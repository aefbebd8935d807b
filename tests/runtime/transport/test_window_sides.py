"""Batches bring the windows along for which their rows count."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.runtime.transport.wire import Decoder, Encoder
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.state_record import PartialsMoved, TimersDue
from dask_elastic.vocab.window_side import WindowSide

ROWS = pa.record_batch({"k": [1, 2]})
HASHES = np.array([1, 2], np.uint64)


def carried(batch, change=lambda header: header):
    decoder, buffers = Decoder(), []

    def learn(schema):
        decoder.learn(schema)
        return 0

    header = change(Encoder(learn).batch(batch, buffers))
    return decoder.batch(header, iter(buffers).__next__)


@pytest.mark.parametrize("side", [None, WindowSide(-5, False), WindowSide(5, True, mixed=True)])
@pytest.mark.parametrize("record", [None, TimersDue(event=7), PartialsMoved(3)])
def test_side_and_record_of_a_batch_round_trip(side, record):
    found = carried(Batch(ROWS, HASHES, 1.5, 2.5, None, record, reached=4, separate=True, side=side))
    assert (found.record, found.reached, found.separate, found.side) == (record, 4, True, side)
    assert found.rows.equals(ROWS)


def test_side_of_other_types_is_refused():
    with pytest.raises(ProtocolError, match="has the side"):
        carried(Batch(ROWS, HASHES, 1.5, side=WindowSide(5, True)), lambda header: [*header[:-1], ["x", True, False]])
