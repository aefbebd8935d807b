"""Which worker has a place among the nodes of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dask_elastic.runtime.scheduler.job_record import JobRecord


class Occupant(NamedTuple):
    """What tells a worker at a place apart from the next one there, also from itself after it has joined again.

    Parameters
    ----------
    generation : int
        The generation of the job; the next one has its own places.
    address : str
        The worker, `VACANT` if the place is.
    incarnation : int
        The number of its joining.
    """

    generation: int
    address: str
    incarnation: int


def occupants(record: JobRecord, nodes: Iterable[int]) -> dict[int, Occupant]:
    """Return who has these places now.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> record = SimpleNamespace(spec=SimpleNamespace(generation=1, nodes=("a", "b")), incarnations={1: 3})
    >>> occupants(record, [1])
    {1: Occupant(generation=1, address='b', incarnation=3)}
    """
    spec = record.spec
    return {node: Occupant(spec.generation, spec.nodes[node], record.incarnations.get(node, 0)) for node in nodes}
