from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.change_order import ChangeOrder


def by_search(deltas, free):
    """Return the order that the rule gives: of the changes that fit the one that takes fewest, else of all."""
    left, waiting, ordered = list(free), list(range(len(deltas))), []
    while waiting:
        fits = [i for i in waiting if all(cores <= max(left[node], 0) for node, cores in deltas[i].items())]
        first = min(fits or waiting, key=lambda i: (sum(deltas[i].values()), i))
        waiting.remove(first)
        ordered.append(first)
        for node, cores in deltas[first].items():
            left[node] -= cores
    return ordered


def test_release_comes_before_taking():
    assert ChangeOrder([{0: 2}, {0: -1}, {0: -1}], [0]).run() == [1, 2, 0]


def test_first_change_breaks_a_cycle():
    assert ChangeOrder([{0: 1, 1: -1}, {0: -1, 1: 1}], [0, 0]).run() == [0, 1]


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 1_000_000))
def test_order_is_that_of_an_exhaustive_search(seed):
    random = np.random.default_rng(seed)
    nodes, changes = int(random.integers(1, 6)), int(random.integers(0, 12))
    deltas = []
    for _ in range(changes):
        values = random.integers(-3, 4, nodes) * (random.random(nodes) < 0.6)
        deltas.append({node: int(cores) for node, cores in enumerate(values) if cores})
    free = random.integers(-3, 5, nodes).tolist()
    assert ChangeOrder(deltas, free).run() == by_search(deltas, free)
