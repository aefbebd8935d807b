"""A sink that calls a user function with each batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import pyarrow as pa

from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import TopologyError


class Call(Sink):
    """Call a function with each batch, on the worker that produced it.

    It promises each row at least once: a job that is restarted from a checkpoint passes the rows after the checkpoint
    again. A function with a parameter `checkpoint` gets the number of the checkpoint before the batch, 0 before the
    first one, and one with a parameter `generation` gets a number that grows with each restart. They tell which rows
    are repeated: as soon as a generation begins at checkpoint n, the rows of earlier generations with n or more are
    obsolete. A store that keeps both numbers with its rows can delete these.

    Parameters
    ----------
    function : callable
        Called as `function(batch)`; its return value is ignored. Each instance of the sink calls it from a thread of
        its own, so several threads of one worker may call it at the same time.
    close : callable, optional
        Called without arguments, once per instance, after the instance's last batch; not after a failure.
    flush : callable, optional
        Called without arguments, by each instance at each checkpoint. A function that keeps rows back must make them
        durable then, because they are not passed again.

    Raises
    ------
    TopologyError
        When `function`, `close` or `flush` is not callable.

    Examples
    --------
    >>> seen = []
    >>> writer = Call(seen.append, close=lambda: seen.append("end")).open(SinkContext("job", "call"))
    >>> writer.write(pa.RecordBatch.from_pydict({"a": [1]}))
    >>> writer.close()
    >>> len(seen)
    2

    A function that is told after which checkpoint a batch comes:

    >>> def store(batch, checkpoint, generation):
    ...     print(batch.num_rows, "rows after checkpoint", checkpoint)
    >>> writer = Call(store).open(SinkContext("job", "call", checkpoints=True))
    >>> writer.write(pa.RecordBatch.from_pydict({"a": [1]}))
    1 rows after checkpoint 0
    >>> writer.prepare(1)
    >>> writer.write(pa.RecordBatch.from_pydict({"a": [2]}))
    1 rows after checkpoint 1
    """

    promise = "at-least-once"

    def __init__(
        self,
        function: Callable[..., object],
        *,
        close: Callable[[], object] | None = None,
        flush: Callable[[], object] | None = None,
    ):
        if not callable(function):
            raise TopologyError(f"sinks.Call takes a function of a batch, not {type(function).__name__}.")
        for name, given in (("close", close), ("flush", flush)):
            if given is not None and not callable(given):
                raise TopologyError(f"sinks.Call: {name} is {given!r}; give a function without arguments.")
        self.function = function
        self.close = close
        self.flush = flush

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        return f"Call({getattr(self.function, '__qualname__', None) or repr(self.function)})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer that calls the function.

        Parameters
        ----------
        context : SinkContext
            The generation of the job.

        Returns
        -------
        SinkWriter
            The writer.
        """
        return _Caller(self, context)


class _Caller(SinkWriter):
    def __init__(self, sink: Call, context: SinkContext):
        self._function = sink.function
        self._flush = sink.flush
        self._at_close = sink.close
        accepted = _keywords(sink.function)
        self._position = {"generation": context.generation} if "generation" in accepted else {}
        self._takes_checkpoint = "checkpoint" in accepted
        self._note(0)

    def write(self, rows: pa.RecordBatch) -> None:
        self._function(rows, **self._position)

    def close(self) -> None:
        if self._at_close is not None:
            self._at_close()
            self._at_close = None

    def abort(self) -> None:
        self._at_close = None

    def prepare(self, checkpoint: int) -> object | None:
        if self._flush is not None:
            self._flush()
        self._note(checkpoint)
        return None

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        self._note(checkpoint)

    def _note(self, checkpoint: int) -> None:
        if self._takes_checkpoint:
            self._position["checkpoint"] = checkpoint


def _keywords(function: Callable[..., object]) -> set[str]:
    """Return the names of the parameters that can be passed by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return set()  # Some builtins have no signature; they are called with the batch alone.
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    # The first parameter is the batch, whatever its name.
    return {each.name for index, each in enumerate(parameters) if index and each.kind in by_name}
