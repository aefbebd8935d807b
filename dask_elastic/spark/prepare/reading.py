"""Reads recordings from files: Parquet, CSV with a header, and JSON with one object per line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.prepare.recordings import RECORDINGS
from dask_elastic.vocab.errors import SourceError

UNREADABLE = "_unreadable"
UNREADABLE_LINE = "unreadable line"

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
TEXT_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNREADABLE}
# The header must match the schema, unused columns are parsed too, and a quote within quotes is doubled, as is common.
CSV_OPTIONS = {"header": "true", "enforceSchema": "false", "columnPruning": "false", "escape": '"'}


def read(
    session: SparkSession,
    path: str,
    recording: str | StructType,
    *,
    format: str | None = None,
    stream: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read the rows of a file, or of the files of a directory.

    Parameters
    ----------
    session : SparkSession
        The session.
    path : str
        A file, a directory or a pattern.
    recording : str or StructType
        A name in `RECORDINGS`, or the columns and their types.
    format : str, optional
        "parquet", "csv" or "json"; by default determined by the suffix of the path.
    stream : bool
        Whether to read a stream, including files that arrive later; then the path is a directory.
    options : mapping of str to str, optional
        More options of Spark's reader, such as ``maxFilesPerTrigger``.

    Returns
    -------
    DataFrame
        The columns of the recording. For CSV and JSON also ``_unreadable``, which holds each line that could not be
        parsed; preparation counts and drops such lines.

    Raises
    ------
    SourceError
        If the format or the recording is unknown.
    SparkFailed
        If there is nothing to read.

    Examples
    --------
    Read a file of flights, and text files that arrive in a directory as a stream::

        flown = read(spark, "flights.parquet", "flights")
        arriving = read(spark, "arriving/", "texts", format="json", stream=True)
    """
    kind = format or FORMATS.get(PurePath(path).suffix.lower())
    if kind is None or kind not in FORMATS.values():
        known = ", ".join(sorted(set(FORMATS.values())))
        raise SourceError(f"the format of {path!r} is unknown, format is {format!r}: give one of {known}.")
    schema = _schema(recording)
    reader = session.readStream if stream else session.read
    if kind == "parquet":
        # Parquet files contain their types, but a stream needs them before the first file arrives.
        reader = reader.schema(schema) if stream else reader
    else:
        reader = reader.schema(StructType([*schema.fields]).add(UNREADABLE, StringType())).options(**TEXT_OPTIONS)
        reader = reader.options(**CSV_OPTIONS) if kind == "csv" else reader
    with spark_errors(f"reading {path}"):
        return reader.options(**(options or {})).format(kind).load(path)


def _schema(recording: str | StructType) -> StructType:
    if isinstance(recording, StructType):
        return recording
    if recording not in RECORDINGS:
        raise SourceError(f"there is no recording {recording!r}: give one of {', '.join(RECORDINGS)}, or a StructType.")
    return cast("StructType", StructType.fromDDL(RECORDINGS[recording]))
