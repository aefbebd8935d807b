"""Waits for the answers of another worker, until it must not wait any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import TypeVar

from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.vocab.errors import JobEnded, NodeLost, UserCodeError

T = TypeVar("T")


class AwaitedAnswers:
    """One thread waits for answers, one at a time; any thread may end this.

    Examples
    --------
    >>> answers, calling = AwaitedAnswers(), Future()
    >>> answers.end(RuntimeError("the job has ended"))
    >>> answers.of(calling)
    Traceback (most recent call last):
    RuntimeError: the job has ended
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calling: Future[object] | None = None
        self.error: Exception | None = None

    def of(self, calling: Future[T]) -> T:
        """Return the answer to a call; raises what it raises, or the error of `end`."""
        with self._lock:
            self._calling = calling  # type: ignore[assignment]
            ended = self.error
        if ended is not None:
            calling.cancel()
            raise ended
        try:
            return calling.result()
        except CancelledError:
            raise (CancelledError() if self.error is None else self.error) from None

    def end(self, error: Exception) -> None:
        """Wait no more; the first error counts."""
        with self._lock:
            self.error = error if self.error is None else self.error
            calling = self._calling
        if calling is not None:
            calling.cancel()


@contextmanager
def handing_over(what: str) -> Iterator[None]:
    """Raise `NodeLost` in place of errors in the block: what is handed over to another worker may be at neither.

    If the job has ended at the other worker, that one reports why. In the block, tasks may process rows that waited for
    the hand-over; errors of user code are those of the job.

    Parameters
    ----------
    what : str
        What is handed over, with a verb.

    Raises
    ------
    Aborted
        If the job has ended, here or at the other worker.
    UserCodeError
        If user code raises.
    NodeLost
        After any other error.

    Examples
    --------
    >>> with handing_over("the home of rides[0] could not be moved"):
    ...     raise OSError("connection reset")
    Traceback (most recent call last):
    dask_elastic.vocab.errors.NodeLost: the home of rides[0] could not be moved: connection reset
    >>> with handing_over("the home of rides[0] could not be moved"):
    ...     raise JobEnded("job 'rides' has ended on worker tcp://10.0.0.2:40001")
    Traceback (most recent call last):
    dask_elastic.runtime.transport.credit.Aborted
    """
    try:
        yield
    except (Aborted, NodeLost, UserCodeError):
        raise
    except JobEnded:
        raise Aborted from None
    except Exception as error:  # whatever it is, the job continues from its newest checkpoint, if it has any
        raise NodeLost(f"{what}: {error}") from error
