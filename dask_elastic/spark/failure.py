"""Spark's errors as their cause: without the stack of the JVM, the plans of the query and the frames of PySpark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from dask_elastic.vocab.errors import ElasticError

JVM_FRAME = re.compile(r"^\s+(at [\w.$/<>]+.*\(.*\)|\.\.\. \d+ more)$|^(Driver stacktrace:|\s*Suppressed: .*)$")
PYTHON_FRAME = re.compile(r'^\s*File "(?P<path>[^"]*)", line \d+')
FOREIGN = re.compile(r"[/\\](pyspark|py4j|pyspark\.zip|py4j-[^/\\]*\.zip)[/\\]")
CAUSED_BY = re.compile(r"^Caused by: ", re.MULTILINE)
# What Spark puts around the cause: where a stream stood, and calls by their number.
AFTERWARDS = re.compile(r"\n+(JVM stacktrace:|=== Streaming Query ===).*", re.DOTALL)
CALL = re.compile(r"^An error occurred while calling [\w.$]+\n: ")
QUERY = re.compile(r"^\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: ")
PLAN = re.compile(r";\n['!~]*[A-Z]\w*\b[^\n]*(\n[ :+|]+-?[^\n]*)*\n*$")
STATE = re.compile(r"[ \n]*SQLSTATE: \w{5}")
JAVA_CLASS = re.compile(r"^([\w$]+\.)+(?=[A-Z][\w$]*(Exception|Error)\b)")


class SparkFailed(ElasticError):
    """Spark failed; says in doing what, and the cause.

    Parameters
    ----------
    message : str
        What was done, and the cause.
    """


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    r"""Turn every error of Spark within a block into `SparkFailed` with its cause.

    Parameters
    ----------
    doing : str
        What is done within, for the message.

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
        raise SparkFailed(f"{doing}: {cause(error)}") from None


def cause(error: BaseException) -> str:
    """Return why Spark failed, in as few lines as that takes.

    Parameters
    ----------
    error : exception
        What PySpark or its gateway raised; others are told as they are.

    Returns
    -------
    str
        The innermost cause. A traceback of Python keeps the frames of the user's code.
    """
    if isinstance(error, Py4JNetworkError):
        return f"the JVM of Spark does not answer, it has probably ended ({error}). Start a new Python process."
    return innermost(str(error))


def innermost(text: str) -> str:
    r"""Return the cause from the text of an error of Spark.

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
    text = STATE.sub("", PLAN.sub("", text.rstrip()))
    return JAVA_CLASS.sub("", text.strip())


def _own_frames(lines: list[str]) -> Iterator[str]:
    """Leave out the frames of PySpark and of its gateway from tracebacks of Python."""
    left_out = False
    for line in lines:
        frame = PYTHON_FRAME.match(line)
        if frame:
            left_out = FOREIGN.search(frame["path"]) is not None
        elif not line.startswith("    "):
            left_out = False
        if not left_out:
            yield line
