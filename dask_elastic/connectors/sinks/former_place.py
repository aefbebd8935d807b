"""What a user can do when the place no longer exists where a sink of before has prepared rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dask_elastic.vocab.errors import SinkError


def way_out(operator: str) -> str:
    """Return how a job continues without the rows that its sink has prepared elsewhere, as a sentence for people.

    Examples
    --------
    >>> way_out("out")
    "If it no longer exists, resume with drop=['out'] and the sink under another name: what it had prepared is lost."
    """
    return (
        f"If it no longer exists, resume with drop=[{operator!r}] and the sink under another name: what it had "
        "prepared is lost."
    )


@contextmanager
def explained_place(operator: str) -> Iterator[None]:
    """Add the way out to errors of the place where the sink of before has prepared rows.

    Parameters
    ----------
    operator : str
        The name of the sink.

    Raises
    ------
    SinkError
        The error of the block.
    """
    try:
        yield
    except SinkError as error:
        raise SinkError(f"{str(error).rstrip('.')}. {way_out(operator)}") from error
