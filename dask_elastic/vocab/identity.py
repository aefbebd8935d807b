"""Identifiers of executors and of instances of sources and sinks."""

from __future__ import annotations

from typing import NamedTuple


class ExecutorId(NamedTuple):
    """One of the fixed instances of a component: an elastic executor, or an instance of a source or a sink.

    Parameters
    ----------
    component : str
        The name of the component.
    index : int
        The number of the instance, from 0.
    """

    component: str
    index: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.component}[{self.index}]"
