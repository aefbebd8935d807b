"""The refusal of sources that cannot be read, as far as the client can tell."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import SourceOperator
from dask_elastic.vocab.errors import ColumnMissing, SourceError


def check_sources(components: Iterable[Component]) -> None:
    """Check that all sources can be read.

    Raises
    ------
    SourceError
        Naming the one that cannot, and what reads a column that it does not have.

    Examples
    --------
    >>> check_sources([])
    """
    for component in components:
        if isinstance(component.operator, SourceOperator):
            try:
                component.operator.source.check()
            except SourceError as error:
                readers = component.readers(error.column) if isinstance(error, ColumnMissing) else ()
                by = f"operator {' and '.join(map(repr, readers))} reads " if readers else ""
                raise SourceError(f"{by}source {component.name!r}: {error}") from error
