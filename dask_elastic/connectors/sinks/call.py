"""A sink that calls a user function with each batch."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import TopologyError


class Call(Sink):
    """Call a function with each batch, on the worker that produced it.

    Parameters
    ----------
    function : callable
        Called as `function(batch)`; its return value is ignored. Each instance of the sink calls it from a thread of
        its own, so several threads of one worker may call it at the same time.
    close : callable, optional
        Called without arguments, once per instance, after the instance's last batch; not after a failure.

    Raises
    ------
    TopologyError
        When `function` or `close` is not callable.

    Examples
    --------
    >>> seen = []
    >>> writer = Call(seen.append, close=lambda: seen.append("end")).open(SinkContext("job", "call"))
    >>> writer.write(pa.RecordBatch.from_pydict({"a": [1]}))
    >>> writer.close()
    >>> len(seen)
    2
    """

    def __init__(self, function: Callable[[pa.RecordBatch], object], *, close: Callable[[], object] | None = None):
        if not callable(function):
            raise TopologyError(f"sinks.Call takes a function of a batch, not {type(function).__name__}.")
        if close is not None and not callable(close):
            raise TopologyError(f"sinks.Call: close is {close!r}; give a function without arguments.")
        self.function = function
        self.close = close

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        return f"Call({getattr(self.function, '__qualname__', None) or repr(self.function)})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer that calls the function.

        Parameters
        ----------
        context : SinkContext
            The instance of the sink; not used.

        Returns
        -------
        SinkWriter
            The writer.
        """
        return _Caller(self.function, self.close)


class _Caller(SinkWriter):
    def __init__(self, function: Callable[[pa.RecordBatch], object], at_close: Callable[[], object] | None):
        self._function = function
        self._at_close = at_close

    def write(self, rows: pa.RecordBatch) -> None:
        self._function(rows)

    def close(self) -> None:
        if self._at_close is not None:
            self._at_close()
            self._at_close = None

    def abort(self) -> None:
        self._at_close = None
