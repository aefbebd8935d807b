import pickle
import traceback

import cloudpickle
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.vocab.pickled_functions import pickled


def of_script(text, name):
    """Return a function as of a script, which workers cannot import."""
    variables = {"__name__": "__main__"}
    exec(compile(text, "script.py", "exec"), variables)
    return variables[name]


OUTER = """
def outer(factor):
    def inner(value):
        return factor / value
    return inner
"""


def test_code_keeps_its_file_also_that_of_functions_inside():
    outer = cloudpickle.loads(pickled(of_script(OUTER, "outer")))
    inner = outer(2)
    assert inner(4) == 0.5
    with pytest.raises(ZeroDivisionError) as raised:
        inner(0)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.name) == ("script.py", 4, "inner")


def test_functions_of_one_pickle_share_their_code():
    function = of_script(OUTER, "outer")
    first, second = cloudpickle.loads(pickled([function(1), function(2)]))
    assert first.__code__ is second.__code__
    assert (first(2), second(2)) == (0.5, 1.0)


def test_objects_that_cannot_be_pickled_raise():
    with pytest.raises(TypeError, match="generator"):
        pickled(value for value in ())


def test_functions_of_a_pickled_topology_keep_their_file():
    topology = de.Topology("t")
    outer = of_script(OUTER, "outer")
    topology.source("rows", de.sources.Arrow(pa.table({"x": [1]}))).map(outer(2), name="mapped")
    operators = {operator.name: operator for operator in pickle.loads(pickle.dumps(topology)).operators}
    assert operators["mapped"].function.__code__.co_filename == "script.py"
