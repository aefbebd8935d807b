"""Rows of Arrow tables, which commands print or write to files."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.console_table import Cell, ConsoleTable
from dask_elastic.cli.terminal.quantities import MISSING
from dask_elastic.vocab.counted import counted

ENDINGS = (".parquet", ".csv", ".arrow")
"""Endings of the files that `write` writes; an Arrow file has the IPC file format, also known as Feather."""


SHOWN = 20
"""Rows of a table on the console, unless the user gives a limit."""


class RowFile(click.Path):
    """The type of an option that names a file for rows.

    The ending is checked when the command line is read, before anything is asked of the cluster.
    """

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or fail with the endings that are possible."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.suffix.lower() not in ENDINGS:
            self.fail(f"{str(path)!r} ends in none of {', '.join(ENDINGS)}", param, ctx)
        return path


def write(table: pa.Table, path: Path) -> None:
    """Write rows in the format that the file's ending names.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    path : Path
        The file; an existing one is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[path.suffix.lower()](table, path)


def _write_parquet(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path)


def _write_csv(table: pa.Table, path: Path) -> None:
    from pyarrow import csv

    csv.write_csv(_flat(table), path)


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


_WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".arrow": _write_arrow,
}


def _flat(table: pa.Table) -> pa.Table:
    """Return a table without nested values, which CSV lacks: they become JSON."""
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = [None if value is None else json_text(_plain(value), None) for value in table[number].to_pylist()]
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    return table


def output(table: pa.Table, limit: int | None, path: Path | None, as_json: bool, total: int | None = None) -> None:
    """Write rows to a file if one is given, else print them as a table or as JSON.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    limit : int or None
        The largest number of rows to print or write. Without it a table on the console has `SHOWN` rows, and a file or
        JSON has all.
    path : Path or None
        The file.
    as_json : bool
        Whether to print JSON, a list of objects.
    total : int, optional
        The number of all rows, if the table has only the first ones.
    """
    total = table.num_rows if total is None else total
    if path is not None:
        chosen = table.slice(0, limit)
        write(chosen, path)
        click.echo(f"Wrote {counted(chosen.num_rows, 'row')} to {path}.")
    elif as_json:
        click.echo(json_text(_plain(table.slice(0, limit).to_pylist())))
    else:
        chosen = table.slice(0, limit or SHOWN)
        show(row_table(chosen))
        if chosen.num_rows < total:
            click.echo(f"{chosen.num_rows:,} of {counted(total, 'row')}; see --limit and --output.", err=True)


def row_table(table: pa.Table) -> ConsoleTable:
    """Return rows for the console.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    """
    texts = {field.name for field in table.schema if not _is_number(field.type)}
    rows = [[*map(_cell, row.values())] for row in table.to_pylist()]
    return ConsoleTable(table.column_names, rows, left=texts)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cell(value: Any) -> Cell:
    """Format a value in one line; control characters, which could change the terminal, are escaped."""
    if value is None:
        return MISSING
    text = value if isinstance(value, str) else json_text(_plain(value), None) if _nested(value) else str(_plain(value))
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: times in ISO format, binary data as hexadecimal digits."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, str | int | float | bool | None) else str(value)
