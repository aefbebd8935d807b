"""Reduces Spark's errors to their cause, without JVM stacks, query plans and PySpark frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from dask_elastic.vocab.errors import ElasticError

JVM_FRAME = re.compile(r"^\s+(at [\w.$/<>]+.*\(.*\)|\.\.\. \d+ more)$|^(Driver stacktrace:|\s*Suppressed: .*)$")
PYTHON_FRAME = re.compile(r'^\s*File "(?P<path>[^"]*)", line \d+')
FOREIGN = re.compile(
    r"[/\\](pyspark|py4j|pyspark\.zip|py4j-[^/\\]*\.zip|concurrent[/\\]futures|asyncio"
    r"|dask_elastic[/\\](connectors|runtime|spark|topology))[/\\]"
)
# A Python traceback without a frame of the user's code.
EMPTY = re.compile(r"(An exception was thrown from the Python worker:\n)?Traceback \(most recent call last\):\n(?=\S)")
OWN_CLASS = re.compile(r"^dask_elastic\.([\w]+\.)+(?=[A-Z])", re.MULTILINE)
GENERIC = re.compile(r"^(Writing job (failed|aborted)|Job aborted)\.?$")
CAUSED_BY = re.compile(r"^Caused by: ", re.MULTILINE)
# Text that Spark adds around the cause: the state of a stream, and numbered calls.
AFTERWARDS = re.compile(r"\n+(JVM stacktrace:|=== Streaming Query ===).*", re.DOTALL)
CALL = re.compile(r"^An error occurred while calling [\w.$]+\n: ")
# What a thread throws whose streaming query is being stopped.
INTERRUPTED = re.compile(
    r"java\.(lang\.InterruptedException|io\.InterruptedIOException|nio\.channels\.ClosedByInterruptException)"
)
QUERY = re.compile(r"^\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: ")
PLAN = re.compile(r";\n['!~]*[A-Z]\w*\b[^\n]*(\n[ :+|]+-?[^\n]*)*\n*$")
STATE = re.compile(r"[ \n]*SQLSTATE: \w{5}")
JAVA_CLASS = re.compile(r"^([\w$]+\.)+(?=[A-Z][\w$]*(Exception|Error)\b)")


class SparkFailed(ElasticError):
    """Spark failed; the message names the operation and the cause.

    Parameters
    ----------
    message : str
        The operation, and the cause.
    """


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    r"""Convert an error of Spark within a block to `SparkFailed` with its cause.

    The interruption of a function of `foreachBatch`, whose query is being stopped, stays as it is: Spark recognises it
    by the text of Py4J's error, and otherwise takes the query for failed.

    Parameters
    ----------
    doing : str
        The operation within the block, for the message.

    Raises
    ------
    SparkFailed
        With the cause; Spark's own error is its ``__context__``.

    Examples
    --------
    >>> from pyspark.errors import PySparkValueError
    >>> with spark_errors("reading the flights"):
    ...     raise PySparkValueError("no such column\n\nJVM stacktrace:\njava.lang.Exception\n\tat a.b(c.java:1)")
    Traceback (most recent call last):
    dask_elastic.spark.failure.SparkFailed: reading the flights: no such column
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if isinstance(error, Py4JError) and INTERRUPTED.search(str(error)):
            raise
        raise SparkFailed(f"{doing}: {cause(error)}") from None


def cause(error: BaseException) -> str:
    """Return the cause of an error of Spark, in few lines.

    Parameters
    ----------
    error : exception
        An error of PySpark or its gateway; the text of other errors is returned unchanged.

    Returns
    -------
    str
        The innermost cause. A Python traceback keeps the frames of the user's code.
    """
    if isinstance(error, Py4JNetworkError):
        return f"Spark's JVM does not answer; it has probably ended ({error}). Start a new Python process."
    text = innermost(str(error))
    further = getattr(error, "_cause", None)
    return cause(further) if GENERIC.match(text) and further is not None else text


def innermost(text: str) -> str:
    r"""Extract the cause from the text of an error of Spark.

    Examples
    --------
    >>> print(innermost('''An error occurred while calling o8.load.
    ... : org.apache.spark.SparkException: Job aborted.
    ... \tat org.apache.spark.sql.Dataset.load(Dataset.scala:1)
    ... Caused by: java.io.IOException: disk full
    ... \tat java.base/java.io.File.write(File.java:2)
    ... \t... 29 more
    ... '''))
    IOException: disk full
    """
    text = AFTERWARDS.sub("", text)
    text = QUERY.sub("", CALL.sub("", text))
    lines = [line for line in _own_frames(text.splitlines()) if not JVM_FRAME.match(line)]
    text = CAUSED_BY.split("\n".join(lines))[-1]
    text = OWN_CLASS.sub("", EMPTY.sub("", text))
    text = STATE.sub("", PLAN.sub("", text.rstrip()))
    return JAVA_CLASS.sub("", text.strip())


def _own_frames(lines: list[str]) -> Iterator[str]:
    """Remove the frames of PySpark and its gateway from Python tracebacks."""
    left_out = False
    for line in lines:
        frame = PYTHON_FRAME.match(line)
        if frame:
            left_out = FOREIGN.search(frame["path"]) is not None
        elif not line.startswith("    "):
            left_out = False
        if not left_out:
            yield line
