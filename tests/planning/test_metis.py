from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.placement import metis
from dask_elastic.planning.placement.metis import Graph, cut
from dask_elastic.vocab.errors import PlanningError

pymetis = pytest.importorskip("pymetis")


@pytest.fixture
def fresh():
    """How METIS is called is found out anew, before and after the test."""
    metis._direct.cache_clear()
    yield
    metis._direct.cache_clear()


def graph(vertices, seed, density=0.2):
    random = np.random.default_rng(seed)
    one = sp.random_array((vertices, vertices), density=density, rng=random).tocsr()
    both = sp.csr_array(one + one.T)
    both.setdiag(0)
    both.eliminate_zeros()
    rates = np.maximum(np.rint(both.data * 1000), 1).astype(np.int64)
    weights = random.integers(1, 1000, vertices)
    return Graph(both.indptr.astype(np.int64), both.indices.astype(np.int64), weights, rates)


def test_installed_partitioner_runs_without_the_lock_of_python():
    assert metis._direct() is not None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("vertices", [2, 3, 12, 60, 300])
@pytest.mark.parametrize(("parts", "shares"), [(2, None), (2, [0.7, 0.3]), (3, [0.5, 0.3, 0.2]), (4, None)])
def test_direct_calls_cut_as_pymetis_does_and_change_no_argument(vertices, parts, shares, seed):
    if parts > vertices / 3 and parts > 2:
        return
    given = graph(vertices, seed)
    copies = [array.copy() for array in given]
    arguments = given, parts, metis._Options(seed, (1, 30, 350)[seed % 3], (10, 1)[seed % 2]), shares
    assert metis._direct()(*arguments).tolist() == metis._by_pymetis(*arguments).tolist()
    assert all((array == copy).all() for array, copy in zip(given, copies, strict=True))


def test_graph_without_edges_is_cut():
    none = np.zeros(0, dtype=np.int64)
    part = cut(Graph(np.zeros(9, dtype=np.int64), none, np.ones(8, dtype=np.int64), none), 2, 0, 1.35)
    assert 0 < part.sum() < 8


def test_cuts_of_several_threads_are_those_of_one():
    graphs = [graph(200, seed) for seed in range(40)]
    expected = [cut(one, 4, 7, 1.35).tolist() for one in graphs]
    with ThreadPoolExecutor(4) as pool:
        assert [part.tolist() for part in pool.map(lambda one: cut(one, 4, 7, 1.35), graphs)] == expected


def test_pymetis_is_called_where_the_function_is_missing(monkeypatch, fresh):
    expected = cut(graph(60, 0), 2, 0, 1.35).tolist()
    metis._direct.cache_clear()
    monkeypatch.setattr(metis.ctypes, "CDLL", lambda path: SimpleNamespace())
    assert metis._direct() is None
    assert cut(graph(60, 0), 2, 0, 1.35).tolist() == expected


def test_pymetis_is_called_where_small_graphs_are_cut_otherwise(monkeypatch, fresh):
    monkeypatch.setattr(metis, "_caller", lambda *given: lambda graph, *more: np.zeros(len(graph.starts) - 1, int))
    assert metis._direct() is None
    assert 0 < cut(graph(60, 0), 2, 0, 1.35).sum() < 60


@pytest.mark.parametrize(("code", "reason"), [(-3, "memory is insufficient"), (-4, "interrupted"), (7, "returned 7")])
def test_failed_cut_names_the_graph_and_the_reason(code, reason, monkeypatch):
    class Function:
        def __call__(self, *given):
            return code

    library = SimpleNamespace(METIS_PartGraphRecursive=Function(), METIS_SetDefaultOptions=Function())
    call = metis._caller(library, np.dtype(np.int64), metis._Options(8, 16, 6))
    monkeypatch.setattr(metis, "_direct", lambda: call)
    with pytest.raises(PlanningError, match=f"METIS did not cut 60 groups into 2 parts: .*{reason}"):
        cut(graph(60, 0), 2, 0, 1.35)


def test_failure_of_pymetis_names_the_graph(monkeypatch):
    def fail(*given, **more):
        raise RuntimeError("Input error")

    monkeypatch.setattr(metis, "_direct", lambda: None)
    monkeypatch.setattr(pymetis, "part_graph", fail)
    with pytest.raises(PlanningError, match="METIS did not cut 60 groups into 2 parts: Input error"):
        cut(graph(60, 0), 2, 0, 1.35)
