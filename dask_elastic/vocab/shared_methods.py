"""Frozen dataclasses that share their methods, so that a process which starts does not generate those of each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform


@dataclass_transform(frozen_default=True)
class SharedMethods:
    """Base of values of which there are many classes and few instances.

    Subclasses are frozen dataclasses; they need no decorator.

    Notes
    -----
    To generate the methods of a class, as `dataclasses` does, takes as long as to make a hundred instances with the
    methods of this one. Classes that each batch makes instances of do not share methods.

    Examples
    --------
    >>> class Interval(SharedMethods):
    ...     first: int
    ...     last: int = 10
    >>> Interval(3)
    Interval(first=3, last=10)
    >>> Interval(3) == Interval(first=3, last=10)
    True
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
        __match_args__: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **named: Any):
        super().__init_subclass__(**named)
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, *values: Any, **named: Any):
        known = dataclasses.fields(self)
        given = {one.name: value for one, value in zip(known, values, strict=False)}
        if len(values) > len(known) or given.keys() & named.keys() or named.keys() - {one.name for one in known}:
            raise TypeError(f"{type(self).__name__} takes {[one.name for one in known]}, each once")
        given |= named
        for one in known:
            self.__dict__[one.name] = given[one.name] if one.name in given else _default(type(self), one)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.__match_args__)))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__qualname__}({shown})"


def _default(kind: type[SharedMethods], field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise TypeError(f"{kind.__name__} lacks {field.name!r}")
