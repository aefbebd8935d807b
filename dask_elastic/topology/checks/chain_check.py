"""The refusal of chains of operators that are too long for one task."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.topology.component import Component, longest_chain
from dask_elastic.vocab.errors import TopologyError

MOST_IN_CHAIN = 100
"""Operators that may follow each other in one task. Each of them calls the next one, and Python limits the depth of
calls, as cloudpickle does that of nested objects: some 240 operators reach it, and functions of users make calls, too.
"""


def check_chains(components: Iterable[Component]) -> None:
    """Refuse more operators behind each other in one task than `MOST_IN_CHAIN`.

    Raises
    ------
    TopologyError
        Naming the first operator of the task, and how many follow it.

    Examples
    --------
    >>> check_chains([])
    """
    for component in components:
        if (length := longest_chain(component.outputs)) > MOST_IN_CHAIN:
            raise TopologyError(
                f"{length} operators follow each other behind {component.name!r} in its tasks, each of which calls the "
                f"next one: join functions, so that at most {MOST_IN_CHAIN} follow each other."
            )
