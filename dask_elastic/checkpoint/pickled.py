"""Pickled objects that name what is missing when they cannot be loaded."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from dask_elastic.vocab.errors import CheckpointError


def versions() -> str:
    """Return the versions on which the loading of pickled objects depends.

    Returns
    -------
    str
        Such as "Python 3.12.4, cloudpickle 3.1.0".
    """
    return f"Python {platform.python_version()}, cloudpickle {cloudpickle.__version__}"


def class_name(kind: type) -> str:
    """Return the module and qualified name of a class.

    Examples
    --------
    >>> from collections import OrderedDict
    >>> class_name(OrderedDict)
    'collections.OrderedDict'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def cannot_load(what: str, classes: str, pickled_with: str, error: Exception) -> CheckpointError:
    """Return the error for objects that cannot be loaded.

    Parameters
    ----------
    what : str
        What the objects are, such as "the state of operator 'planes'".
    classes : str
        Their classes.
    pickled_with : str
        The versions with which they were pickled, see `versions`.
    error : Exception
        What loading them raised.

    Returns
    -------
    CheckpointError
        Names the classes, both versions and the fix.
    """
    return CheckpointError(
        f"{what} cannot be loaded: it has objects of {classes}, pickled with {pickled_with}; with {versions()}, "
        f"loading them raises {type(error).__name__}: {error}. Install the module in the version that was used, on the "
        "scheduler, the client and all workers, or keep a class of that name."
    )


@dataclass(frozen=True)
class Pickled:
    """An object in a manifest, which is loaded only by those that need it.

    Parameters
    ----------
    data : bytes
        The object, pickled.
    kind : str
        Module and qualified name of its class.
    versions : str
        The versions with which it was pickled.

    Examples
    --------
    >>> offset = Pickled.of({"file": 3, "row": 100})
    >>> offset.kind, offset.load("the offset of source 'flights'")
    ('builtins.dict', {'file': 3, 'row': 100})
    """

    data: bytes = field(repr=False)
    kind: str
    versions: str

    @classmethod
    def of(cls, value: object) -> Pickled:
        """Pickle an object.

        Parameters
        ----------
        value : object
            A small object.

        Returns
        -------
        Pickled
            The object and what is needed to load it.

        Raises
        ------
        CheckpointError
            When it cannot be pickled.
        """
        name = class_name(type(value))
        try:
            return cls(cloudpickle.dumps(value), name, versions())
        except Exception as error:
            # An object may raise any error when it is pickled.
            raise CheckpointError(
                f"an object of {name} cannot be pickled for a checkpoint: {type(error).__name__}: {error}. Offsets and "
                "prepared handles are small values without open files, locks or connections."
            ) from error

    def load(self, what: str) -> Any:
        """Return the object.

        Parameters
        ----------
        what : str
            What it is, for the error.

        Returns
        -------
        object
            A new copy.

        Raises
        ------
        CheckpointError
            When its class cannot be loaded here.
        """
        try:
            return cloudpickle.loads(self.data)
        except Exception as error:
            raise cannot_load(what, self.kind, self.versions, error) from error
