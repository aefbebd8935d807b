"""Reading recordings from files: Parquet, CSV with a line of names, and JSON with an object a line."""

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
# Names in the first line must be those of the schema, columns that nobody asked for are parsed too, and a quote within
# quotes is doubled, as most programs write it.
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
        A name out of `RECORDINGS`, or the columns and their types.
    format : str, optional
        "parquet", "csv" or "json"; by default what the path ends in says it.
    stream : bool
        Whether files that arrive later are read too; then the path is a directory.
    options : mapping of str to str, optional
        More options of Spark's reader, such as ``maxFilesPerTrigger``.

    Returns
    -------
    DataFrame
        Columns as the recording has them, and for text ``_unreadable`` with every line that is not as it should be,
        which preparation counts and drops.

    Raises
    ------
    SourceError
        If the format or the recording is not known.
    SparkFailed
        If there is nothing to read.
    """
    kind = format or FORMATS.get(PurePath(path).suffix.lower())
    if kind is None or kind not in FORMATS.values():
        known = ", ".join(sorted(set(FORMATS.values())))
        raise SourceError(
            f"{path!r} does not tell a format that can be read, format is {format!r}: give one of {known}."
        )
    schema = _schema(recording)
    reader = session.readStream if stream else session.read
    if kind == "parquet":
        # A file in this format knows its types. A stream must know them before there is a file.
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
        raise SourceError(
            f"no recording is called {recording!r}: give one of {', '.join(RECORDINGS)}, or a StructType."
        )
    return cast("StructType", StructType.fromDDL(RECORDINGS[recording]))
