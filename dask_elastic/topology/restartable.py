"""Which sources and sinks a job with checkpoints accepts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from dask_elastic.topology.operators import Operator, SinkOperator, SourceOperator
from dask_elastic.topology.sink import Sink
from dask_elastic.vocab.errors import SubmitError


def check_restartable(job: str, operators: Iterable[Operator]) -> None:
    """Check that all sources can rewind and all sinks can prepare; called when a job with checkpoints is submitted.

    Parameters
    ----------
    job : str
        The name of the job, for the error text.
    operators : iterable of Operator
        The operators of its topology.

    Raises
    ------
    SubmitError
        When a source cannot rewind and does not allow to lose rows, or a sink promises nothing; names it.
    """
    for operator in operators:
        if isinstance(operator, SourceOperator):
            source = operator.source
            if not source.replayable and source.replay != "at-most-once":
                raise SubmitError(
                    f"job {job!r} takes checkpoints, but source {operator.name!r}, {source!r}, cannot rewind to one. "
                    'Read from another source, set replay="at-most-once" to accept that rows are lost in a restart, or '
                    "submit the job without checkpoints."
                )
        elif isinstance(operator, SinkOperator) and operator.sink.promise is None:
            raise SubmitError(
                f"job {job!r} takes checkpoints, but sink {operator.name!r}, {operator.sink!r}, cannot take part in "
                f"them. {_remedy(operator.sink)}, write to another sink, or submit the job without checkpoints."
            )


def _remedy(sink: Sink) -> str:
    accepts = "promise" in inspect.signature(type(sink)).parameters
    lossy = ', set promise="at-most-once" to accept that it loses rows in a restart' if accepts else ""
    return f"Define SinkWriter.prepare and set Sink.promise{lossy}"
