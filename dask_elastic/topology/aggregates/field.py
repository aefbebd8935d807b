"""One column of keyed state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.errors import StateError


@dataclass(frozen=True, eq=False)
class Field:
    """A column of state: one value per key, or one list of values.

    Parameters
    ----------
    name : str
        Its name, unique within the state of an operator.
    dtype : dtype
        What the values are; `object` for any Python value.
    initial : object
        What a key has before its first update; for `object` only None. Times are kept as their number.
    ragged : bool
        Whether a key has a list of such values, in the beginning an empty one; a column of them is a `Ragged`.

    Examples
    --------
    >>> Field("count", np.dtype(np.int64), 0)
    Field('count', int64, initial=0)
    >>> Field("least", np.dtype(np.float64), float("nan")) == Field("least", np.dtype("f8"), np.nan)
    True
    """

    name: str
    dtype: np.dtype[Any]
    initial: Any = 0
    ragged: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if self.dtype == object:
            if self.initial is not None:
                raise StateError(
                    f"state field {self.name!r}: an object field starts from None, not {self.initial!r}; "
                    "keep a second field that says whether the first has been set"
                )
        else:
            initial = np.array(self.initial, dtype=self.dtype)
            plain = initial.view(np.int64) if self.dtype.kind in "Mm" else initial
            object.__setattr__(self, "initial", plain.item())

    @property
    def is_object(self) -> bool:
        """Whether the values are Python objects."""
        return bool(self.dtype == object)

    def fresh(self, count: int) -> npt.NDArray[Any]:
        """Return the values of `count` keys that were not updated yet; not for a ragged field."""
        if self.dtype.kind in "Mm":
            return np.full(count, self.initial, dtype=np.int64).view(self.dtype)
        return np.full(count, self.initial, dtype=self.dtype)

    def initially(self, count: int) -> Any:
        """Return the column of `count` keys that were not updated yet: an array, or a `Ragged` of empty lists."""
        return Ragged.empty(count, self.dtype) if self.ragged else self.fresh(count)

    def _identity(self) -> tuple[str, str, str, bool]:
        # By their text, so that NaN equals NaN.
        return self.name, self.dtype.str, str(self.initial), self.ragged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Field) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        start = "ragged" if self.ragged else f"initial={self.initial!r}"
        return f"Field({self.name!r}, {self.dtype.name}, {start})"
