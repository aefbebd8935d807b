"""Checks of what users declare about the columns by which computes can share a task."""

from __future__ import annotations

from dask_elastic.vocab.errors import TopologyError


def check_partition(columns: object, keys: tuple[str, ...], where: str) -> tuple[str, ...] | None:
    """Check the partition attributes of a compute.

    Parameters
    ----------
    columns : object
        A list or tuple of key columns; None for all.
    keys : tuple of str
        The key columns.
    where : str
        The operator, for the error text.

    Returns
    -------
    tuple of str or None
        The names, in the order of the keys; None for all.

    Raises
    ------
    TopologyError
        When they are not distinct key columns.

    Examples
    --------
    >>> check_partition(["plane"], ("day", "plane"), "compute 'days'")
    ('plane',)
    """
    if columns is None:
        return None
    named = _names(columns, f"{where}: partition_by")
    if not named:
        raise TopologyError(f"{where}: partition_by is empty; name key columns, or omit it for all of them.")
    for column in named:
        if column not in keys:
            raise TopologyError(
                f"{where}: partition_by has {column!r}, which is no key column; choose from {', '.join(keys)}: rows of "
                "one key must be computed in one place."
            )
    return tuple(key for key in keys if key in named)


def check_keeps(columns: object, where: str) -> tuple[str, ...]:
    """Check the columns that a function keeps.

    Parameters
    ----------
    columns : object
        A list or tuple of names, which may be empty.
    where : str
        The operator, for the error text.

    Returns
    -------
    tuple of str
        The names.

    Raises
    ------
    TopologyError
        When it is not a list or tuple of distinct names.

    Examples
    --------
    >>> check_keeps(["plane"], "map 'tidy'")
    ('plane',)
    """
    return _names(columns, f"{where}: keeps")


def _names(columns: object, where: str) -> tuple[str, ...]:
    if isinstance(columns, list | tuple):
        names = tuple(column for column in columns if isinstance(column, str) and column)
        if len(set(names)) == len(columns):
            return names
    example = [columns] if isinstance(columns, str) else ["plane"]
    raise TopologyError(f"{where} is {columns!r}; give a list of distinct column names, such as {example!r}.")
