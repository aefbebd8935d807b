"""The contract of sources: from each of its offsets, a source yields exactly the rows that follow."""

from __future__ import annotations

import pickle
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from dask_elastic.topology.source import Source, SourceContext

OFFSET_BYTES = 4_096
"""The largest pickled offset: every checkpoint contains one per instance."""


def check_source(
    make_source: Callable[[], Source], most_offsets: int = 50, sent: Sequence[pa.RecordBatch] = ()
) -> pa.Table:
    """Check that a source resumes from its offsets, in every instance, with all columns and with one.

    Parameters
    ----------
    make_source : callable
        Returns the source; called for each read, as if each were on another worker. The source must end.
    most_offsets : int
        From how many offsets of each instance reading is resumed, evenly spread.
    sent : sequence of RecordBatch, optional
        For a source with `spooled = True`: what it gets from its mailbox or queue. A read from an offset gets what
        follows, as a job with checkpoints keeps it.

    Returns
    -------
    Table
        The rows of all instances, one after the other.

    Raises
    ------
    AssertionError
        If a resumed read repeats or skips rows, two reads differ, or an offset is not a small picklable value.

    Examples
    --------
    >>> from dask_elastic.connectors import sources
    >>> check_source(lambda: sources.Arrow(pa.table({"n": range(100)}), batch_rows=8, parallel=2)).num_rows
    100
    >>> batches = [pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]})]
    >>> check_source(lambda: sources.Push(pa.schema({"n": pa.int64()})), sent=batches)["n"].to_pylist()
    [1, 2, 3]
    """
    instances = make_source().parallel
    read = partial(_check_instance, make_source, instances, most_offsets, sent)
    shares = [read(instance, None) for instance in range(instances)]
    shares = [share for share in shares if share.num_rows]
    if shares:
        for instance in range(instances):
            # Half of the columns: a source that prunes reads other batches.
            names = tuple(shares[0].schema.names[::2])
            read(instance, names)
    return pa.concat_tables(shares) if shares else pa.table({})


def _check_instance(
    make_source: Callable[[], Source],
    instances: int,
    most_offsets: int,
    sent: Sequence[pa.RecordBatch],
    instance: int,
    columns: tuple[str, ...] | None,
) -> pa.Table:
    def read(offset: object) -> list[tuple[pa.RecordBatch, object]]:
        source = make_source().columns_read(columns)
        context = SourceContext(instance=instance, instances=instances, offset=offset)
        return list(source.read(_with_sent(context, source, sent) if source.spooled else context))

    whole = read(None)
    every = max(1, -(-len(whole) // most_offsets))
    where = f"{make_source()!r}, instance {instance} of {instances}, columns {columns or 'all'}"
    for index, (_, offset) in enumerate(whole):
        if index % every and index + 1 < len(whole):
            continue
        pickled = pickle.dumps(offset)
        assert len(pickled) <= OFFSET_BYTES, f"{where}: offset {index} has {len(pickled)} bytes, {OFFSET_BYTES} at most"
        shown = reprlib.repr(offset)
        again = read(pickle.loads(pickled))
        same = _table([rows for rows, _ in again]).equals(_table([rows for rows, _ in whole[index + 1 :]]))
        assert same, f"{where}: a read from offset {shown} does not yield the rows after batch {index}"
        if again:
            assert again[-1][1] == whole[-1][1], f"{where}: resumed from {shown}, it ends at another offset"
    return _table([rows for rows, _ in whole])


def _with_sent(context: SourceContext, source: Source, sent: Sequence[pa.RecordBatch]) -> SourceContext:
    """Return a context with a mailbox and a queue that have what was sent behind the offset."""
    reached = context.offset if isinstance(context.offset, int) else 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal reached
        for rows in sent[reached:]:
            reached += 1
            yield rows

    mailbox = batches() if source.pushed else None
    return replace(context, mailbox=mailbox, queue=lambda name: batches(), position=lambda: reached)


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    full = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(full).combine_chunks() if full else pa.table({})
