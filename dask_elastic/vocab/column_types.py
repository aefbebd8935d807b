"""The types of the columns that an operator gets from one upstream operator, and their comparison across a union."""

from __future__ import annotations

from typing import NamedTuple

from dask_elastic.vocab.errors import SchemaMismatch

UNTYPED = "null"
"""The type of a column of which only nulls were seen; it fits every type."""


class ColumnTypes(NamedTuple):
    """The types of some columns as an upstream operator sends them.

    Parameters
    ----------
    producer : str
        The upstream operator, or several, as text.
    types : dict of str to str
        The type of each column, as text.
    whole : bool
        Whether the receiver reads whole batches, so that all must have these columns, in this order.
    """

    producer: str
    types: dict[str, str]
    whole: bool = False

    def require_same(self, other: ColumnTypes, receiver: str) -> None:
        """Check that two upstream operators send the same types.

        Parameters
        ----------
        other : ColumnTypes
            What the other operator sends.
        receiver : str
            The operator that gets both.

        Raises
        ------
        SchemaMismatch
            When the type of a column differs; names the operators, the columns and the types. A receiver of whole
            batches also needs the same columns in one order.

        Examples
        --------
        >>> ColumnTypes("north", {"k": "int64"}).require_same(ColumnTypes("south", {"k": "string"}), "per_k")
        Traceback (most recent call last):
            ...
        dask_elastic.vocab.errors.SchemaMismatch: operator 'per_k' reads a union of 'north' and 'south', whose columns
        differ: 'k' is int64 from 'north' and string from 'south'. Cast the columns to one type in a map before the
        union.
        """
        parts = [
            f"{column!r} is {kind} from {self.producer!r} and {other.types[column]} from {other.producer!r}"
            for column, kind in self.types.items()
            if column in other.types and kind != other.types[column] and UNTYPED not in (kind, other.types[column])
        ]
        if self.whole:
            parts += self._only(other) + other._only(self)
            if not parts and [*self.types] != [*other.types]:
                parts = [f"the order is {', '.join(self.types)} and {', '.join(other.types)}"]
        if parts:
            remedy = "Make the columns alike" if self.whole else "Cast the columns to one type"
            raise SchemaMismatch(
                f"operator {receiver!r} reads a union of {self.producer!r} and {other.producer!r}, whose columns "
                f"differ: {'; '.join(parts)}. {remedy} in a map before the union."
            )

    def _only(self, other: ColumnTypes) -> list[str]:
        return [f"{column!r} is only from {self.producer!r}" for column in self.types if column not in other.types]
