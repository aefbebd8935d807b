"""Random large jobs, for the evaluation of fusion.

Notes
-----
Enorm, section 7 ("Large Job"): 50, 100 and 150 operators with subsets of 30 partition attributes, 500 jobs each. What
the paper does not specify is documented at `random_job`. ERRATA, Enorm 2: Algorithm 1 as printed makes cycles in most
of these jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dask_elastic.vocab.errors import TopologyError


@dataclass(frozen=True)
class RandomJob:
    """The part of a job that fusion needs.

    Parameters
    ----------
    attributes : dict of str to frozenset of str
        The partition attributes of each operator.
    rates : dict of (str, str) to float
        Tuples per second from operator to operator.
    levels : tuple of tuple of str
        The operators, level by level; tuples go from each level to the next.
    """

    attributes: dict[str, frozenset[str]]
    rates: dict[tuple[str, str], float]
    levels: tuple[tuple[str, ...], ...]


def random_job(operators: int, seed: int, attributes: int = 30, change: int = 3, rate: float = 1000.0) -> RandomJob:
    """Make a random job.

    Parameters
    ----------
    operators : int
        The number of operators, 4 or more.
    seed : int
        Seeds the job; the same seed and size give the same job.
    attributes : int
        The number of partition attributes to choose from.
    change : int
        The greatest difference in the number of attributes of two consecutive operators.
    rate : float
        Tuples per second that each operator can send, the paper's X; some of them are not sent.

    Returns
    -------
    RandomJob
        Operators "op1", "op2", … in the order of their levels.

    Raises
    ------
    TopologyError
        If a number is out of range.

    Notes
    -----
    Enorm, section 7. There are three to 0.75 · `operators` levels. An operator sends to each operator of the next
    level, in turn, its remaining rate times two random numbers from 0 to 1. The first subset has half of the
    attributes, and the size changes "by a random value" from operator to operator: here by a whole number from
    −`change` to `change`, kept from 1 to `attributes`. The levels are as equal in size as possible.

    Examples
    --------
    >>> job = random_job(50, seed=1)
    >>> len(job.attributes), len(job.attributes["op1"]), job == random_job(50, seed=1)
    (50, 15, True)
    """
    for name, value, least in (("operators", operators, 4), ("attributes", attributes, 1), ("change", change, 0)):
        if value < least:
            raise TopologyError(f"{name} is {value!r}: give a whole number from {least} on.")
    if not 0 < rate < np.inf:
        raise TopologyError(f"rate is {rate!r}: give tuples per second above 0.")
    random = np.random.default_rng([seed, operators])
    names = [f"op{number}" for number in range(1, operators + 1)]
    chosen = dict(zip(names, _subsets(random, operators, attributes, change), strict=True))
    count = int(random.integers(3, int(0.75 * operators), endpoint=True))
    levels = tuple(tuple(names[place] for place in part) for part in np.array_split(np.arange(operators), count))
    return RandomJob(chosen, _rates(random, levels, rate), levels)


def _subsets(random: np.random.Generator, operators: int, attributes: int, change: int) -> list[frozenset[str]]:
    """Draw the attributes of each operator; the size of the subset is a random walk."""
    names = np.array([f"a{number}" for number in range(1, attributes + 1)])
    size = max(attributes // 2, 1)
    subsets = []
    for _ in range(operators):
        subsets.append(frozenset(random.choice(names, size, replace=False).tolist()))
        size = int(np.clip(size + random.integers(-change, change, endpoint=True), 1, attributes))
    return subsets


def _rates(
    random: np.random.Generator, levels: tuple[tuple[str, ...], ...], rate: float
) -> dict[tuple[str, str], float]:
    """Draw the rates from each operator to each operator of the next level."""
    rates = {}
    for level, following in pairwise(levels):
        for source in level:
            left = rate
            for target, share in zip(following, random.random((len(following), 2)).prod(axis=1).tolist(), strict=True):
                rates[source, target] = left * share
                left -= left * share
    return rates
