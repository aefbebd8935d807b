"""METIS, which cuts a graph into parts of given weights with little traffic between them, without Python's lock.

Goal
    The cuts of `pymetis.part_graph`, while other threads of the process run.
Heuristic
    None: the function of METIS that pymetis contains is called with ctypes, which releases the GIL. Where that function
    is missing, or small graphs are not cut as pymetis cuts them, pymetis is called.
Not done
    Cuts of two threads at once: METIS draws random numbers from the C library and replaces signal handlers, which the
    process has once. So one lock of the process guards it, although planners have no locks otherwise.

Notes
-----
While METIS cuts, SIGTERM and SIGABRT have handlers of METIS, which end the process if another thread runs them, with or
without the GIL.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dask_elastic.planning.checked_arrays import Ints
from dask_elastic.planning.extras import require
from dask_elastic.vocab.errors import PlanningError

THOROUGH = 10
"""METIS's own number of refinements."""

_LOCK = threading.Lock()
_OPTIONS = 40
_OK = 1
_REASONS = {-2: "its input is wrong", -3: "memory is insufficient", -4: "it was interrupted or failed"}


class Graph(NamedTuple):
    """A graph in which each edge is there in both directions, in METIS's form.

    Attributes
    ----------
    starts : array of int, vertices + 1
        Where the neighbours of each vertex start.
    neighbours : array of int
        The neighbours of all vertices.
    weights : array of int
        The weight of each vertex, 1 or more.
    rates : array of int
        The weight of each edge, 1 or more.
    """

    starts: Ints
    neighbours: Ints
    weights: Ints
    rates: Ints


class _Options(NamedTuple):
    """Options of METIS, or where these are in its array."""

    seed: int
    ufactor: int
    niter: int


def cut(
    graph: Graph,
    parts: int,
    seed: int,
    uneven: float,
    shares: Sequence[float] | None = None,
    refinements: int = THOROUGH,
) -> Ints:
    """Cut a graph in two, and each half again, until there are so many parts; some of them may be empty.

    Parameters
    ----------
    graph : Graph
        The graph.
    parts : int
        The number of parts, 2 or more. The first cut separates the first half of their numbers from the others.
    seed : int
        METIS's seed.
    uneven : float
        How much larger than its share a part may be after a cut; 1.35 for a third.
    shares : sequence of float, optional
        The share of the weight for each part; equal ones if left out.
    refinements : int
        How often each cut is improved at most, while it has more or fewer vertices, 1 or more.

    Returns
    -------
    array of int
        The part of each vertex.

    Raises
    ------
    MissingExtra
        If METIS is not installed.
    PlanningError
        If METIS fails.

    Examples
    --------
    >>> two_pairs = Graph(*map(np.array, ([0, 1, 2, 3, 4], [1, 0, 3, 2], [1] * 4, [5] * 4)))
    >>> part = cut(two_pairs, parts=2, seed=0, uneven=1.35)
    >>> bool(part[0] == part[1]), bool(part[2] == part[3]), bool(part[0] != part[2])
    (True, True, True)
    """
    options = _Options(int(seed) % (2**31 - 1), round(1000 * (uneven - 1)), refinements)
    with _LOCK:
        return (_direct() or _by_pymetis)(graph, parts, options, shares)


_Cut = Callable[[Graph, int, _Options, Sequence[float] | None], Ints]


def _pymetis() -> Any:
    return require("pymetis", "graph partitioning")


def _by_pymetis(graph: Graph, parts: int, given: _Options, shares: Sequence[float] | None) -> Ints:
    """Cut a graph by pymetis, which holds the GIL."""
    pymetis = _pymetis()
    options = pymetis.Options()
    options.seed, options.ufactor, options.niter = given
    try:
        _, part = pymetis.part_graph(
            parts,
            # Lists take as long as the cut.
            pymetis.CSRAdjacency(graph.starts, graph.neighbours),
            vweights=graph.weights,
            eweights=graph.rates,
            tpwgts=None if shares is None else list(shares),
            recursive=True,
            options=options,
        )
    except RuntimeError as error:
        raise _failed(graph, parts, str(error)) from error
    return np.asarray(part, dtype=np.int64)


@cache
def _direct() -> _Cut | None:
    """Return how METIS is called without the GIL; None where it cannot be."""
    pymetis = _pymetis()
    try:
        library, whole = ctypes.CDLL(pymetis._internal.__file__), np.dtype(pymetis.zero_copy_dtype())
        indices = pymetis._internal.options_indices
        call = _caller(library, whole, _Options(int(indices.SEED), int(indices.UFACTOR), int(indices.NITER)))
        return call if _agrees(call) else None
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def _caller(library: Any, whole: np.dtype[Any], places: _Options) -> _Cut:
    """Return how the METIS of a library is called.

    Parameters
    ----------
    library : ctypes library
        It has the functions of METIS.
    whole : dtype
        METIS's whole numbers.
    places : _Options
        Where the options are.
    """
    recursive, defaults = library.METIS_PartGraphRecursive, library.METIS_SetDefaultOptions
    recursive.restype, recursive.argtypes = ctypes.c_int, [ctypes.c_void_p] * 13
    defaults.restype, defaults.argtypes = ctypes.c_int, [ctypes.c_void_p]

    def call(graph: Graph, parts: int, given: _Options, shares: Sequence[float] | None) -> Ints:
        arrays = [np.ascontiguousarray(array, dtype=whole) for array in graph]
        count = len(arrays[0]) - 1
        numbers, part = np.array([count, 1, parts, 0], dtype=whole), np.zeros(count, dtype=whole)
        options = np.zeros(_OPTIONS, dtype=whole)
        defaults(options.ctypes.data)
        options[list(places)] = given
        # Twice as long as needed, so that nothing is read beyond its end if METIS has real numbers of 64 bits.
        aims = None if shares is None else np.array([*shares, *[0.0] * len(shares)], dtype=np.float32)
        vertices, weights_each, number, edges_cut = (numbers.ctypes.data + whole.itemsize * i for i in range(4))
        starts, neighbours, weights, rates = (array.ctypes.data for array in arrays)
        wanted = None if aims is None else aims.ctypes.data
        code = recursive(
            vertices, weights_each, starts, neighbours, weights, None, rates,
            number, wanted, None, options.ctypes.data, edges_cut, part.ctypes.data,
        )  # fmt: skip
        if code != _OK:
            raise _failed(graph, parts, _REASONS.get(code, f"it returned {code}"))
        return part.astype(np.int64, copy=False)

    return call


def _agrees(call: _Cut) -> bool:
    """Return whether small graphs are cut as pymetis cuts them, which shows that numbers have the assumed widths."""
    # A ring in which each vertex has two neighbours on both sides.
    size = 12
    vertex: Ints = np.arange(size, dtype=np.int64)
    neighbours: Ints = np.sort((vertex[:, None] + np.array([-2, -1, 1, 2])) % size, axis=1).ravel()
    rates: Ints = 1 + (np.repeat(vertex, 4) + neighbours) * 7 % 11
    graph = Graph(np.arange(size + 1) * 4, neighbours, 1 + vertex % 3, rates)
    for parts, shares in ((2, None), (2, (0.75, 0.25)), (4, None), (3, (0.2, 0.5, 0.3))):
        for seed, niter in ((0, THOROUGH), (1, THOROUGH), (2, 1)):
            given = graph, parts, _Options(seed, 200, niter), shares
            if call(*given).tolist() != _by_pymetis(*given).tolist():
                return False
    return True


def _failed(graph: Graph, parts: int, reason: str) -> PlanningError:
    size = len(graph.starts) - 1
    return PlanningError(
        f"METIS did not cut {size} groups into {parts} parts: {reason}. Use another placement, such as 'flux'."
    )
