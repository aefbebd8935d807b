from __future__ import annotations

import sys
import types

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.checkpoint import folder as folders
from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.pickled import Pickled, versions
from dask_elastic.checkpoint.read_state import reading_of
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.state import KeyedStore, StateLayout, StateRows, decode
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

INPUT = pa.schema({"plane": pa.string()})
NUMBER = Field("number", np.dtype(np.int64), 0)
OBJECT = Field("object", np.dtype(object), None)
WORDS = Field("words", np.dtype(object), None, ragged=True)


@pytest.fixture
def folder():
    return CheckpointFolder("memory://state-files")


def rows(field, values, first=0):
    count = len(values)
    return StateRows(
        np.arange(first, first + count, dtype=np.uint64),
        np.zeros(count, np.uint64),
        np.zeros(count, np.int32),
        pa.record_batch({"plane": [f"N{number}" for number in range(first, first + count)]}),
        (field,),
        [values],
        np.zeros(count, np.bool_),
    )


def objects(*values):
    found = np.empty(len(values), object)
    found[:] = values
    return found


def written(folder, *parts, header=None, **options):
    header = header or StateHeader("planes", 0, 1, 4, 7, frozenset({0, 2, 3}), INPUT)
    return state_file.write(folder, state_file.path_of(1, header, 3), header, parts, **options)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_header_and_rows_are_read_as_written(folder, compression):
    ref = written(folder, rows(NUMBER, np.arange(1000)), rows(NUMBER, np.arange(5), 1000), compression=compression)
    assert (ref.path, ref.rows) == ("state/0000000007/1-0-g3.arrows", 1005)
    file = state_file.read(folder, ref)
    assert file.header == StateHeader("planes", 0, 1, 4, 7, frozenset({0, 2, 3}), INPUT)
    assert np.concatenate([decode(batch).values[0] for batch in file.batches()]).tolist() == [*range(1000), *range(5)]


def test_file_without_rows_has_its_header(folder):
    ref = written(folder, rows(NUMBER, np.arange(0)))
    file = state_file.read(folder, ref)
    assert (ref.rows, file.header.full, [batch.num_rows for batch in file.batches()]) == (0, {0, 2, 3}, [])


def test_batches_are_bounded(folder, monkeypatch):
    monkeypatch.setattr(state_file, "BATCH_BYTES", 4096)
    file = state_file.read(folder, written(folder, rows(NUMBER, np.arange(5000))))
    sizes = [batch.nbytes for batch in file.batches()]
    assert len(sizes) > 20
    assert max(sizes) < 8192


def test_large_local_file_is_read_in_parts_and_damage_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_PART_BYTES", 1000)
    monkeypatch.setattr(state_file, "BATCH_BYTES", 4096)
    local = CheckpointFolder(tmp_path)
    ref = written(local, rows(NUMBER, np.arange(5000)))
    file = state_file.read(local, ref)
    for _ in range(2):
        assert np.concatenate([decode(batch).values[0] for batch in file.batches()]).tolist() == [*range(5000)]
    path = tmp_path / ref.path
    whole = path.read_bytes()
    for contents, wanted in ((whole[:-1], "bytes"), (whole[:5000] + b"?" + whole[5001:], "checksum"), (None, "bytes")):
        path.unlink()
        if contents is not None:
            path.write_bytes(contents)
        with pytest.raises(CheckpointCorrupt, match=rf"{path.name} is damaged: wanted .*{wanted}"):
            state_file.read(local, ref)


def test_lists_of_words_and_of_other_objects_are_in_one_file(folder):
    words = Ragged.of_lengths(objects("a", "b"), np.array([1, 1]))
    others = Ragged.of_lengths(objects("c", 4), np.array([0, 2]))
    ref = written(folder, rows(WORDS, words), rows(WORDS, others, 2))
    file = state_file.read(folder, ref)
    lists = [values for batch in file.batches() for values in decode(batch).values[0].to_lists()]
    assert lists == [["a"], ["b"], [], ["c", 4]]
    assert file.header.classes == ("builtins.int", "builtins.str")


def test_object_that_cannot_be_loaded_is_named_with_its_operator(folder):
    module = types.ModuleType("flights_v1")
    exec("class Plane:\n    pass", module.__dict__)
    sys.modules["flights_v1"] = module
    header = StateHeader("planes", 0, 1, 4, 1, frozenset(range(4)), INPUT)
    ref = written(folder, rows(OBJECT, objects(module.Plane(), None)), header=header)
    del sys.modules["flights_v1"]
    chain = Chain(4).cut(1, [2, 0, 0, 0], [2, 0, 0, 0]).written(1, ref)
    state = OperatorState("planes", ("plane",), 1, 4, (chain,))
    store = KeyedStore(4, lambda hashes: (hashes % 4).astype(int))
    with pytest.raises(CheckpointError) as caught:
        restore_executor(folder, state, 0, 1, store)
    text = str(caught.value)
    assert "the state of operator 'planes' cannot be loaded: it has objects of flights_v1.Plane, pickled" in text
    assert f"pickled with {versions()}; with {versions()}" in text
    assert "ModuleNotFoundError: No module named 'flights_v1'" in text


def test_newer_format_is_refused_with_both_versions(folder, monkeypatch):
    monkeypatch.setattr(state_file, "FORMAT", 7)
    ref = written(folder, rows(NUMBER, np.arange(3)))
    monkeypatch.setattr(state_file, "FORMAT", 1)
    with pytest.raises(CheckpointError, match=r"1-0-g3.arrows has format 7, .* reads formats up to 1. Upgrade"):
        state_file.read(folder, ref)


@pytest.mark.parametrize("contents", [b"", b"no Arrow", pa.ipc.new_stream])
def test_other_file_is_no_file_of_state(folder, contents):
    if not isinstance(contents, bytes):
        sink = pa.BufferOutputStream()
        contents(sink, INPUT).close()
        contents = sink.getvalue()
    ref = folder.write("other", [contents])
    with pytest.raises(CheckpointCorrupt, match="memory://state-files/other is damaged: wanted a file of state, got"):
        state_file.read(folder, ref)


def test_state_that_had_expired_at_the_checkpoint_is_omitted(folder):
    declared = {"last": de.Value(pa.int64(), ttl="10 s")}
    fields = StateLayout(declared).fields
    state = StateRows(
        np.arange(2, dtype=np.uint64),
        np.zeros(2, np.uint64),
        np.zeros(2, np.int32),
        pa.record_batch({"plane": ["old", "new"]}),
        fields,
        [np.array([1, 2]), np.ones(2, np.bool_), np.array([99.0, 101.0])],
        np.zeros(2, np.bool_),
    )
    header = StateHeader("planes", 0, 1, 1, 1, frozenset({0}), INPUT)
    ref = state_file.write(folder, state_file.path_of(0, header, 1), header, [state])
    chain = Chain(1).cut(1, [2], [2]).written(1, ref)
    reading = reading_of(Compute("planes", ("plane",), lambda batch, state: None, declared))
    states = OperatorState("planes", ("plane",), 1, 1, (chain,), reading)
    topology = folder.write("topology/1.pickle", [b"pickled"])
    Catalog(folder).publish(Manifest("delays", 1, 1, 100.0, 100.5, topology, states=(states,)))
    assert de.read_state(folder.url, "planes").to_pylist() == [{"plane": "new", "last": 2}]


def test_state_without_a_definition_is_refused(folder):
    topology = folder.write("topology/1.pickle", [b"pickled"])
    states = (OperatorState("planes", ("plane",), 1, 1, (Chain(1),)),)
    Catalog(folder).publish(Manifest("delays", 1, 1, 100.0, 100.5, topology, states=states))
    with pytest.raises(CheckpointError, match="does not say how the state of operator 'planes' is read"):
        de.read_state(folder.url, "planes")


def test_pickled_object_names_its_class_and_versions():
    broken = Pickled(cloudpickle.dumps(3)[:-2], "flights.Offset", "Python 3.9.1, cloudpickle 2.0")
    with pytest.raises(CheckpointError) as caught:
        broken.load("the offset of source 'flights'")
    text = str(caught.value)
    assert text.startswith("the offset of source 'flights' cannot be loaded: it has objects of flights.Offset, pickled")
    assert "with Python 3.9.1, cloudpickle 2.0; with Python" in text


def test_object_that_cannot_be_pickled_is_refused():
    with pytest.raises(CheckpointError, match=r"an object of .*generator cannot be pickled for a checkpoint"):
        Pickled.of(number for number in range(3))
