"""Options: each is declared once, with its kind, and parsed, checked and refused in one way."""

from __future__ import annotations

import difflib
import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
from dask.utils import parse_bytes

from dask_elastic.topology.duration import parse_duration
from dask_elastic.vocab.errors import SubmitError, TopologyError

UNPARSED = (TypeError, ValueError, KeyError, OverflowError, TopologyError)
"""What the parsers raise for values that they do not understand."""


class Unfit(Exception):
    """A value that an option does not take; the text says why, and what it takes."""


class Kind(ABC):
    """The values that an option takes."""

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """Return a value as the engine uses it.

        Raises
        ------
        Unfit
            If the option does not take it.
        """


@dataclass(frozen=True)
class Flag(Kind):
    """True or False; as text, "true" or "false"."""

    def parse(self, value: Any) -> bool:
        """Return a bool."""
        text = value.lower() if isinstance(value, str) else value
        if not isinstance(value, bool | str) or text not in (True, False, "true", "false"):
            raise Unfit(": give True or False")
        return text in (True, "true")


@dataclass(frozen=True)
class Choice(Kind):
    """One of some names."""

    names: tuple[str, ...]

    def parse(self, value: Any) -> str:
        """Return the name."""
        if value not in self.names:
            near = nearest(value, self.names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise Unfit(f": choose from {', '.join(map(repr, self.names))}{hint}")
        return str(value)


@dataclass(frozen=True)
class ChoiceByName(Choice):
    """One of some names, or one for each of some operators."""

    def parse(self, value: Any) -> Any:
        """Return the name, or a dict of names by operator."""
        if not isinstance(value, Mapping):
            return super().parse(value)
        found = {}
        for operator_name, one in value.items():
            try:
                found[str(operator_name)] = super().parse(one)
            except Unfit as error:
                raise Unfit(f" of {operator_name!r} is {one!r}{error}") from error
        return found


@dataclass(frozen=True)
class Amount(Kind):
    """A finite number.

    Parameters
    ----------
    positive : bool
        Whether it must be above zero.
    least, most : float or None
        The least and the largest value.
    """

    positive: bool = True
    least: float | None = None
    most: float | None = None

    article = "a number"

    def parse(self, value: Any) -> float:
        """Return a number."""
        try:
            if isinstance(value, bool | np.bool_):
                raise TypeError("neither True nor False")
            parsed = self.convert(value)
        except UNPARSED as error:
            raise Unfit(f" is not {self.article}") from error
        if self.positive and not (parsed > 0 and math.isfinite(parsed)):
            raise Unfit(" must be above zero")
        if self.least is not None and not parsed >= self.least:
            raise Unfit(f" must be at least {self.least:g}")
        if self.most is not None and not parsed <= self.most:
            raise Unfit(f" must be at most {self.most:g}")
        return parsed

    def convert(self, value: Any) -> float:
        """Return a number, whatever it is; raises one of `UNPARSED`."""
        return float(value)


class Duration(Amount):
    """Seconds, or a text such as "50ms"."""

    article = "a duration such as '50ms'"

    def convert(self, value: Any) -> float:
        """Return seconds."""
        return parse_duration(value, "the option")


class Size(Amount):
    """Bytes, or a text such as "32MiB"."""

    article = "a size such as '32MiB'"

    def convert(self, value: Any) -> int:
        """Return bytes."""
        if not isinstance(value, str):
            return int(super().convert(value))
        return int(parse_bytes(value))


class Count(Amount):
    """A whole number above zero."""

    article = "a whole number"

    def convert(self, value: Any) -> int:
        """Return an int."""
        return operator.index(value)


class Folder(Kind):
    """A local path, made absolute, or a URL."""

    def parse(self, value: Any) -> str:
        """Return the path or URL."""
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not isinstance(text, str) or not text.strip():
            raise Unfit(" is neither a path nor a URL")
        return text if "://" in text else Path(text).expanduser().absolute().as_posix()


@dataclass(frozen=True)
class Option:
    """One option.

    Parameters
    ----------
    name : str
        The argument or field that it fills.
    kind : Kind
        The values that it takes.
    optional : bool
        Whether None is a value, too.
    key : str, optional
        Its name under ``elastic`` in the Dask configuration; `name` with hyphens if left out.
    """

    name: str
    kind: Kind
    optional: bool = False
    key: str = ""

    @property
    def path(self) -> str:
        """Its path in the Dask configuration."""
        return f"elastic.{self.key or self.name.replace('_', '-')}"

    def parse(self, value: Any, label: str) -> Any:
        """Return a value as the engine uses it.

        Parameters
        ----------
        value : object
            The value.
        label : str
            What an error calls the option.

        Raises
        ------
        SubmitError
            If the option does not take the value: names the option, the value, and what it takes.
        """
        if value is None and self.optional:
            return None
        try:
            return self.kind.parse(value)
        except Unfit as error:
            raise SubmitError(f"{label}={value!r}{error}") from error

    def configured(self) -> Any:
        """Return the value in the Dask configuration of this process.

        Raises
        ------
        SubmitError
            If the option does not take it.

        Examples
        --------
        >>> Option("heartbeat_interval", Duration()).configured()
        0.5
        """
        return self.parse(dask.config.get(self.path), self.path)


def configured(options: Iterable[Option]) -> dict[str, Any]:
    """Return the values of options in the Dask configuration of this process, by name.

    Raises
    ------
    SubmitError
        If an option does not take its value.
    """
    return {option.name: option.configured() for option in options}


def nearest(given: Any, names: Sequence[str]) -> str | None:
    """Return the name that is most similar to a given one, None if none is."""
    return next(iter(difflib.get_close_matches(str(given), names, 1)), None)
