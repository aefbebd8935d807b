"""Names of the moving parts: which executor, which upstream instance."""

from __future__ import annotations

from typing import NamedTuple


class ExecutorId(NamedTuple):
    """One of the fixed parts of a component: an elastic executor, or one instance of a source or a sink.

    Parameters
    ----------
    component : str
        Name of the component.
    index : int
        Which of its instances, from 0.
    """

    component: str
    index: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.component}[{self.index}]"
