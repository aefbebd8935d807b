from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.checkpoint.chain import FULL, MOST_FILES, Chain
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.vocab.errors import CheckpointError

SHARDS = 3
KEYS = 4


class Model:
    """Keyed state beside the files that its cuts wrote, as an executor with a chain would have them."""

    def __init__(self, shards=SHARDS, most=MOST_FILES):
        self.shards = shards
        self.state = [{} for _ in range(shards)]
        self.dirty = [set() for _ in range(shards)]
        self.chain = Chain(shards, most=most)
        self.files = {}
        self.history = {0: [{} for _ in range(shards)]}
        self.number = 0
        self.changed_rows = 0
        self.written_rows = 0
        self.unwritten = {}

    def put(self, shard, key, value):
        if value is None and key not in self.state[shard]:
            return
        self.dirty[shard].add(key)
        if value is None:
            del self.state[shard][key]
        else:
            self.state[shard][key] = value

    def cut(self):
        self.number += 1
        changed = [len(keys) for keys in self.dirty]
        self.changed_rows += sum(changed)
        self.chain = self.chain.cut(self.number, changed, [len(keys) for keys in self.state])
        if self.chain.is_cut(self.number):
            full = self.chain.full(self.number)
            contents = {shard: dict(self.state[shard]) for shard in full}
            contents |= {
                shard: {key: self.state[shard].get(key) for key in keys}
                for shard, keys in enumerate(self.dirty)
                if shard not in full and keys
            }
            self.unwritten[self.number] = full, contents
        self.dirty = [set() for _ in range(self.shards)]
        self.history[self.number] = [dict(keys) for keys in self.state]
        return self.number

    def write(self, number):
        if number in self.unwritten:
            self.files[number] = self.unwritten.pop(number)
            rows = sum(map(len, self.files[number][1].values()))
            self.written_rows += rows
            self.chain = self.chain.written(number, FileRef(str(number), 10 * rows, "crc32:0", rows))

    def fail(self, number):
        if self.unwritten.pop(number, None) is not None:
            self.chain = self.chain.failed(number)

    def restored(self, number):
        state = [{} for _ in range(self.shards)]
        for file in self.chain.at(number).files:
            full, contents = self.files[int(file.path)]
            for shard in full:
                state[shard] = {}
            for shard, rows in contents.items():
                state[shard] |= rows
                state[shard] = {key: value for key, value in state[shard].items() if value is not None}
        return state


UPDATE = st.tuples(st.just("put"), st.integers(0, SHARDS - 1), st.integers(0, KEYS - 1), st.none() | st.integers(0, 99))
STEPS = st.lists(
    UPDATE
    | st.tuples(st.just("cut"), st.sampled_from(["written", "failed", "later"]))
    | st.tuples(st.sampled_from(["write", "fail"]), st.integers(0, 3)),
    max_size=40,
)


@settings(deadline=None, max_examples=400)
@given(STEPS, st.sampled_from([2, 4, 32]))
def test_files_of_a_chain_restore_the_state_under_failures_in_any_order(steps, most):
    model = Model(most=most)
    for step in steps:
        match step:
            case ("put", shard, key, value):
                model.put(shard, key, value)
            case ("cut", outcome):
                number = model.cut()
                if outcome != "later":
                    (model.write if outcome == "written" else model.fail)(number)
            case (outcome, position) if model.unwritten:
                waiting = sorted(model.unwritten)
                (model.write if outcome == "write" else model.fail)(waiting[position % len(waiting)])
        for number, state in model.history.items():
            try:
                restored = model.restored(number)
            except CheckpointError:
                continue
            assert restored == state
    # Whatever failed before: once a cut is written, the checkpoint can be restored.
    for number in sorted(model.unwritten):
        model.fail(number)
    model.write(model.cut())
    assert model.restored(model.number) == model.state


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(UPDATE, max_size=12), max_size=40))
def test_at_most_twice_as_many_rows_are_written_as_changed_while_the_chain_is_short(cuts):
    model = Model(most=1000)
    for updates in cuts:
        for _, shard, key, value in updates:
            model.put(shard, key, value)
        model.write(model.cut())
        assert model.written_rows <= 2 * model.changed_rows


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 10), st.floats(0.001, 0.2))
def test_number_of_files_is_bounded_and_no_shard_is_rewritten_often(seed, most, share):
    rng = np.random.default_rng(seed)
    shards, keys = 6, 50
    model = Model(shards, most)
    for shard in range(shards):
        for key in range(keys):
            model.put(shard, key, -1)
    fulls = [0] * shards
    cuts = 10 * most
    for round_ in range(cuts):
        for shard, key in zip(*np.nonzero(rng.random((shards, keys)) < share), strict=True):
            model.put(int(shard), int(key), round_ if rng.random() < 0.9 else None)
        number = model.cut()
        for shard in model.chain.full(number):
            fulls[shard] += 1
        model.write(number)
        assert len(model.chain.at(number).files) <= most
    assert model.restored(model.number) == model.state
    rounds = cuts / (most / 2) + 2
    assert model.written_rows <= 2 * model.changed_rows + shards * keys * rounds


def test_forced_copies_are_spread_over_several_cuts():
    chain = Chain(64, most=8).cut(1, [100] * 64, [100] * 64).written(1, _file(1))
    sizes = []
    for number in range(2, 60):
        chain = chain.cut(number, [1, *[0] * 63], [100] * 64)
        sizes.append(len(chain.full(number)))
        chain = chain.written(number, _file(number))
    assert max(sizes[:8]) < 64
    assert max(sizes[20:]) <= 32


def test_idle_executor_writes_nothing_although_its_chain_is_long():
    chain = Chain(4, most=4)
    for number in range(1, 4):
        chain = chain.cut(number, [1, 0, 0, 0], [100] * 4).written(number, _file(number))
    assert chain.cut(9, [0] * 4, [100] * 4) is chain


def test_shard_is_written_in_full_once_its_changes_exceed_its_keys():
    chain = Chain(1).cut(1, [10], [10]).written(1, _file(1))
    assert chain.full(1) == {0}
    chain = chain.cut(2, [5], [10]).written(2, _file(2)).cut(3, [5], [10]).written(3, _file(3))
    assert (chain.full(2), chain.full(3)) == (frozenset(), frozenset())
    chain = chain.cut(4, [1], [10])
    assert chain.full(4) == {0}
    assert [file.path for file in chain.written(4, _file(4)).files] == ["4"]


def test_shard_whose_keys_are_all_deleted_is_written_in_full_without_rows():
    chain = Chain(1).cut(1, [10], [10]).written(1, _file(1)).cut(2, [10], [0])
    assert chain.full(2) == {0}


def test_checkpoint_is_refused_after_lost_changes_until_they_are_written_again():
    chain = Chain(2).cut(1, [9, 9], [9, 9]).written(1, _file(1)).cut(2, [1, 0], [9, 9])
    with pytest.raises(CheckpointError, match="checkpoint 2 needs the changes of cut 2, which is not written yet"):
        chain.at(2)
    # Cut 3 begins before the failure of cut 2 is known.
    chain = chain.cut(3, [1, 1], [9, 9]).failed(2).written(3, _file(3))
    with pytest.raises(CheckpointError, match="checkpoint 3 needs the changes of cut 2, which could not be written"):
        chain.at(3)
    chain = chain.cut(4, [0, 0], [9, 9])
    assert chain.full(4) == {0}
    assert [file.path for file in chain.written(4, _file(4)).at(4).files] == ["1", "3", "4"]


def test_checkpoint_is_refused_once_a_later_cut_is_written():
    chain = Chain(1).cut(1, [4], [4]).cut(2, [4], [4]).written(2, _file(2))
    with pytest.raises(CheckpointError, match="checkpoint 1 is given up"):
        chain.at(1)


def test_failures_of_different_shards_are_all_written_again():
    chain = Chain(2).cut(1, [9, 9], [9, 9]).written(1, _file(1)).cut(2, [1, 0], [9, 9]).cut(3, [0, 1], [9, 9])
    assert chain.failed(2).failed(3).cut(4, [0, 0], [9, 9]).full(4) == {0, 1}


def test_changes_count_from_the_last_full_copy_although_older_files_are_kept():
    chain = Chain(2).cut(1, [9, 9], [9, 9]).written(1, _file(1)).cut(2, [8, 1], [9, 9]).written(2, _file(2))
    chain = chain.cut(3, [8, 0], [9, 9]).written(3, _file(3)).cut(4, [8, 1], [9, 9])
    assert (chain.full(3), chain.full(4), len(chain.links)) == (frozenset({0}), frozenset(), 4)


def test_failures_in_a_row_keep_one_link():
    chain = Chain(2).cut(1, [9, 9], [9, 9]).written(1, _file(1))
    for number in range(2, 200):
        chain = chain.cut(number, [1, 0], [9, 9]).failed(number)
    assert len(chain.links) == 2


def test_chain_without_files_writes_everything_first():
    chain = Chain.without_files(3).cut(1, [0, 0, 0], [5, 0, 5])
    assert chain.full(1) == {0, 1, 2}
    assert [link.number for link in chain.written(1, _file(1)).links] == [1]


def test_files_that_are_given_up_are_written_again_and_written_ones_are_kept():
    chain = Chain(2).cut(1, [9, 9], [9, 9]).written(1, _file(1)).cut(2, [1, 0], [9, 9]).abandoned()
    assert [file.path for file in chain.files] == ["1"]
    assert chain.abandoned() == chain
    assert chain.cut(3, [0, 1], [9, 9]).full(3) == {0}


def test_earlier_checkpoint_keeps_its_files_while_the_next_is_written():
    chain = Chain(1).cut(1, [4], [4]).cut(2, [4], [4])
    chain = chain.written(1, _file(1))
    assert [file.path for file in chain.at(1).files] == ["1"]
    assert [file.path for file in chain.written(2, _file(2)).at(2).files] == ["2"]


def test_number_of_a_cut_must_rise():
    with pytest.raises(CheckpointError, match="cut 3 follows cut 3: numbers must rise"):
        Chain(1).cut(3, [1], [1]).cut(3, [1], [1])


def test_counts_must_be_one_per_shard():
    with pytest.raises(ValueError, match="2 counts for 3 shards"):
        Chain(3).due([1, 1], [1, 1])


def test_link_names_its_full_shards():
    link = Chain(3).cut(1, [5, 0, 1], [5, 9, 9]).links[0]
    assert (link.contents, link.full) == ((FULL, 0, 1), frozenset({0}))


def _file(number):
    return FileRef(str(number), 10, "crc32:0", 1)


def test_checkpoint_of_an_executor_without_state_can_be_given_up():
    chain = Chain(2).cut(1, [0, 0], [0, 0])
    assert chain.failed(1) == chain.abandoned() == chain == Chain(2)
    assert chain.failed(1).cut(2, [1, 0], [1, 0]).full(2) == {0}
