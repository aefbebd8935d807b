"""Growing arrays in files that are mapped into memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.state.disk.unnamed_files import ROWS_AT_ONCE, UnnamedFiles
from dask_elastic.state.index import Slots

_FILLED_AT_ONCE = 1 << 18


class MappedArray:
    """A one-dimensional array in a file; it is read and written like an ndarray, at arrays of places.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the file.
    dtype : dtype
        The type of the elements, without objects.
    length : int
        The number of elements.
    initial : optional
        The value of new elements; zero by default.

    Notes
    -----
    Several threads may access different elements; `grow` must exclude them.

    Examples
    --------
    >>> import tempfile
    >>> array = MappedArray(UnnamedFiles(tempfile.gettempdir()), np.dtype(np.int64), 3)
    >>> array[np.array([2, 0])] = np.array([7, 5])
    >>> array.grow(4)
    >>> array.take(np.array([0, 1, 2, 3])).tolist()
    [5, 0, 7, 0]
    """

    def __init__(self, files: UnnamedFiles, dtype: np.dtype[Any], length: int, initial: Any = None) -> None:
        self.dtype = dtype
        self._initial = initial
        self._file = files.open()
        self._view: npt.NDArray[Any] = np.empty(0, dtype)
        self.grow(length)

    def __len__(self) -> int:
        return len(self._view)

    def grow(self, length: int) -> None:
        """Extend the array to `length` elements.

        Parameters
        ----------
        length : int
            The new length, at least the present one.

        Raises
        ------
        StateDiskError
            If the disk is full; nothing has changed then.
        """
        before = len(self._view)
        view = self._file.map(self.dtype, length)
        if self._initial is not None:
            for start in range(before, length, _FILLED_AT_ONCE):
                view[start : min(length, start + _FILLED_AT_ONCE)] = self._initial
                self._file.files.touched(_FILLED_AT_ONCE)
        self._view = view

    def take(self, places: Slots) -> npt.NDArray[Any]:
        """Return copies of the elements at places.

        Parameters
        ----------
        places : ndarray of intp
            The places.

        Returns
        -------
        ndarray
            The elements.
        """
        return self.taken(self._view, places)

    def taken(self, view: npt.NDArray[Any], places: Slots) -> npt.NDArray[Any]:
        """Return copies of the elements at places of a view of this array, such as one field of its records."""
        if len(places) <= 16:
            self._file.files.touched(len(places))
            return view[places]
        return self._file.fetched(places * self.dtype.itemsize, lambda: self._copied(view, places))

    def _copied(self, view: npt.NDArray[Any], places: Slots) -> npt.NDArray[Any]:
        taken = np.empty(len(places), view.dtype)
        for start in range(0, len(places), ROWS_AT_ONCE):
            some = places[start : start + ROWS_AT_ONCE]
            taken[start : start + len(some)] = view[some]
            self._file.files.touched(len(some))
        return taken

    def put(self, view: npt.NDArray[Any], places: Any, values: Any) -> None:
        """Write values at places of a view of this array: one value for all, or one for each place."""
        if isinstance(places, slice):
            view[places] = values
            return
        one = np.ndim(values) == 0 or (len(values) == 1 and len(places) != 1)
        for start in range(0, len(places), ROWS_AT_ONCE):
            some = places[start : start + ROWS_AT_ONCE]
            view[some] = values if one else values[start : start + len(some)]
            self._file.files.touched(len(some))

    def __getitem__(self, places: Any) -> npt.NDArray[Any]:
        """Return a view of a slice, or copies of the elements at an array of places."""
        return self._view[places] if isinstance(places, slice) else self.take(places)

    def __setitem__(self, places: Any, values: Any) -> None:
        self.put(self._view, places, values)

    def field(self, name: str) -> MappedField:
        """Return access to one field of all records."""
        return MappedField(self, name)

    @property
    def view(self) -> npt.NDArray[Any]:
        """All elements, in mapped memory; valid until `grow`."""
        return self._view

    @property
    def bytes(self) -> memoryview:
        """The mapped memory; valid until `grow`."""
        return self._view.data


class MappedField:
    """One field of the records of a `MappedArray`, used like an array of its own.

    The fields of a key are in one record, so that a key that is not cached is one page to read, not one per field.

    Parameters
    ----------
    records : MappedArray
        The records.
    name : str
        The field.
    """

    def __init__(self, records: MappedArray, name: str) -> None:
        self._records = records
        self._name = name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._records.view[self._name].dtype

    def __len__(self) -> int:
        return len(self._records)

    def take(self, places: Slots) -> npt.NDArray[Any]:
        """Return copies of the elements at places."""
        return self._records.taken(self._records.view[self._name], places)

    def __getitem__(self, places: Any) -> npt.NDArray[Any]:
        """Return a view of a slice, or copies of the elements at an array of places."""
        return self._records.view[self._name][places] if isinstance(places, slice) else self.take(places)

    def __setitem__(self, places: Any, values: Any) -> None:
        self._records.put(self._records.view[self._name], places, values)
