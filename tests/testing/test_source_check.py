from __future__ import annotations

import pyarrow as pa
import pytest

from dask_elastic.testing import check_source
from dask_elastic.topology import Source


class Numbers(Source):
    """Yields 0 to 9 in batches of up to 3; `resume` maps the offset to the first row read."""

    parallel = 1

    def __init__(self, resume=lambda offset: offset, offset_of=lambda position: position):
        self.resume = resume
        self.offset_of = offset_of

    def read(self, context):
        start = 0 if context.offset is None else self.resume(context.offset)
        while start < 10:
            stop = min(start + 3, 10)
            rows = {"n": range(start, stop), "text": [str(n) for n in range(start, stop)]}
            start = stop
            yield pa.RecordBatch.from_pydict(rows), self.offset_of(stop)


def test_source_that_resumes_exactly_is_accepted():
    assert check_source(Numbers)["n"].to_pylist() == list(range(10))


@pytest.mark.parametrize(
    ("resume", "offset_of", "message"),
    [
        (lambda offset: offset - 1, int, "from offset 3 does not yield the rows after batch 0"),
        (lambda offset: offset + 1, int, "does not yield the rows after"),
        (lambda offset: 0, int, "does not yield the rows after"),
        (
            lambda offset: len(offset) // 1_000,
            lambda position: b"x" * position * 1_000,
            "offset 1 has .* bytes, 4096 at most",
        ),
    ],
)
def test_source_that_repeats_or_skips_rows_is_found(resume, offset_of, message):
    with pytest.raises(AssertionError, match=message):
        check_source(lambda: Numbers(resume, offset_of))


def test_source_that_fails_only_when_pruned_is_found():
    class Pruned(Numbers):
        def columns_read(self, columns):
            return self if columns is None else Numbers(resume=lambda offset: offset + 2)

    with pytest.raises(AssertionError, match=r"columns \('n',\): a read from offset 3"):
        check_source(Pruned)


def test_source_that_ends_elsewhere_when_resumed_is_found():
    class Drifting(Numbers):
        def read(self, context):
            for rows, offset in super().read(context):
                yield rows, offset if context.offset is None or offset < 10 else 11

    with pytest.raises(AssertionError, match="it ends at another offset"):
        check_source(Drifting)
