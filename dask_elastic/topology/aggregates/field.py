"""Fields: the columns of keyed state."""

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
        The name, unique within the state of an operator.
    dtype : dtype
        The type of the values; `object` for any Python value.
    initial : object
        The value of a key before its first update; for `object` only None. Times are stored as integers.
    ragged : bool
        Whether each key has a list of values, initially empty; the column is then a `Ragged`.

    Raises
    ------
    StateError
        If the dtype is `object` and `initial` is not None.

    Examples
    --------
    >>> Field("count", np.dtype(np.int64), 0)
    Field('count', int64, initial=0)
    >>> Field("least", np.dtype(np.float64), float("nan")) == Field("least", np.dtype("f8"), np.nan)
    True
    >>> count = Field("count", np.dtype(np.int64), 0)
    >>> count.fresh(2).tolist(), count.initially(2).tolist()
    ([0, 0], [0, 0])
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
                    "use a second field to record whether the first has been set"
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
        """Return the initial values of keys as an array; not for a ragged field.

        Parameters
        ----------
        count : int
            The number of keys.

        Returns
        -------
        ndarray
            One value per key.
        """
        if self.dtype.kind in "Mm":
            return np.full(count, self.initial, dtype=np.int64).view(self.dtype)
        return np.full(count, self.initial, dtype=self.dtype)

    def initially(self, count: int) -> Any:
        """Return the initial column of keys.

        Parameters
        ----------
        count : int
            The number of keys.

        Returns
        -------
        ndarray or Ragged
            One value per key; for a ragged field, one empty list per key.
        """
        return Ragged.empty(count, self.dtype) if self.ragged else self.fresh(count)

    def _identity(self) -> tuple[str, str, str, bool]:
        # The text, since NaN does not equal NaN.
        return self.name, self.dtype.str, str(self.initial), self.ragged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Field) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        start = "ragged" if self.ragged else f"initial={self.initial!r}"
        return f"Field({self.name!r}, {self.dtype.name}, {start})"
