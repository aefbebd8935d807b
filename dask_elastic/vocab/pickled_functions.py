"""Pickling of functions of users with their files, which tracebacks of their errors show."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle


def pickled(value: Any) -> bytes:
    """Pickle an object with cloudpickle; code keeps the name of its file.

    Parameters
    ----------
    value : object
        What may contain functions of no module, such as those of a script or a notebook.

    Returns
    -------
    bytes
        The pickle, for `cloudpickle.loads` where dask_elastic is installed.

    Raises
    ------
    Exception
        Whatever an object raises that cannot be pickled.

    Examples
    --------
    >>> double = eval(compile("lambda x: 2 * x", "script.py", "eval"))
    >>> loaded = cloudpickle.loads(pickled(double))
    >>> loaded(4), loaded.__code__.co_filename
    (8, 'script.py')
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            # From version 3.1.3 on, cloudpickle replaces the name of the file by "<dynamic-code>".
            return _code_of_file, (value.co_filename, *self.dispatch_table[CodeType](value))
        return super().reducer_override(value)


def _code_of_file(name: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=name)
