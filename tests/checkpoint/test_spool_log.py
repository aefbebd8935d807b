"""The log of a spool: restarts, torn ends, damage, lost writers that continue, and crashes between all steps."""

from __future__ import annotations

import json
import logging
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.local_appender import LocalAppender
from dask_elastic.checkpoint.local_files import LocalFiles
from dask_elastic.checkpoint.spool.entry import Entry
from dask_elastic.checkpoint.spool.frames import Kind, encoded
from dask_elastic.checkpoint.spool.log import GenerationEnded, SpoolLog
from dask_elastic.checkpoint.spool.sender_table import SenderTable
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

PATH = "spool/run/rows/0"


class Crash(BaseException):
    """The process ends here."""


def rows(number):
    return pa.record_batch({"n": pa.array([number], pa.int64())})


def entry(number, sender="a"):
    return Entry(number, sender, number, rows(number), due=float(number), arrived=1.0)


def entries(first, last):
    return [entry(number) for number in range(first, last + 1)]


def opened(folder, **options):
    """The log as the next generation of the job opens it."""
    return SpoolLog(folder, PATH, next_generation(folder), **options)


def numbers(log, after=0):
    found = list(log.entries(after))
    assert [each.rows["n"].to_pylist() for each in found] == [[each.number] for each in found]
    return [each.number for each in found]


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    return CheckpointFolder(tmp_path if request.param == "local" else f"memory://{tmp_path}")


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=4),
    segment_bytes=st.sampled_from([1, 600, 1 << 20]),
    local=st.booleans(),
)
def test_each_generation_reads_what_all_before_it_appended(groups, segment_bytes, local):
    with tempfile.TemporaryDirectory() as path:
        folder = CheckpointFolder(path if local else f"memory://{path}")
        last = 0
        for sizes in groups:
            log = opened(folder, segment_bytes=segment_bytes)
            assert (log.last, log.senders.last("a")) == (last, last)
            for after in {0, last // 2, last}:
                assert numbers(log, after) == list(range(after + 1, last + 1))
            for size in sizes:
                log.append(entries(last + 1, last + size))
                last += size
            log.close()


def test_rows_of_all_types_due_times_and_the_end_come_back(folder):
    nested = pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode(), "l": [[1], [2, 3]]})
    empty = nested.slice(0, 0)
    metadata = rows(3).replace_schema_metadata({"checkpoint": "7"})
    wanted = [
        Entry(1, "häß-lich", 5, rows(1), None, 2.5),
        Entry(2, "", 0, nested, 1.5, 2.5),
        Entry(3, "x", 1, empty),
        Entry(4, "x", 2, metadata),
        Entry(5, "", 0, None),
    ]
    log = opened(folder)
    log.append(wanted[:2])
    log.append(wanted[2:])
    again = opened(folder)
    found = list(again.entries(0))
    assert [each.rows.to_pydict() if each.rows else None for each in found] == [
        each.rows.to_pydict() if each.rows else None for each in wanted
    ]
    assert found[3].rows.schema.metadata == {b"checkpoint": b"7"}
    assert [(each.sender, each.sequence, each.due, each.arrived) for each in found] == [
        (each.sender, each.sequence, each.due, each.arrived) for each in wanted
    ]
    assert again.ended
    assert again.senders.to_dict() == {"häß-lich": 5, "x": 2}


def whole_log(path):
    """A log of three segments of one generation; returns the number of entries that were appended."""
    log = opened(CheckpointFolder(path), segment_bytes=900)
    for first in range(1, 13, 2):
        log.append(entries(first, first + 1))
    log.close()
    return log.last


def segments(path):
    return sorted((Path(path) / PATH).iterdir())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_flipped_bit_is_found_or_changes_nothing(data):
    with tempfile.TemporaryDirectory() as path:
        last = whole_log(path)
        damaged = data.draw(st.sampled_from(segments(path)))
        contents = bytearray(damaged.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(contents) - 1))
        contents[bit // 8] ^= 1 << bit % 8
        damaged.write_bytes(contents)
        found = None
        with suppress(CheckpointCorrupt):
            found = numbers(opened(CheckpointFolder(path)))
        assert found in (None, list(range(1, last + 1)))


@settings(max_examples=100, deadline=None)
@given(cut=st.floats(0, 1), junk=st.binary(max_size=40))
def test_torn_end_is_cut_and_the_next_generation_continues_behind_it(cut, junk):
    with tempfile.TemporaryDirectory() as path:
        last = whole_log(path)
        torn = segments(path)[-1]
        contents = torn.read_bytes()
        torn.write_bytes(contents[: int(cut * len(contents))] + junk)
        folder = CheckpointFolder(path)
        log = opened(folder)
        first = int(torn.name.split("-")[1])
        assert first - 1 <= log.last <= last
        assert numbers(log) == list(range(1, log.last + 1))
        log.append(entries(log.last + 1, log.last + 3))
        assert numbers(opened(folder)) == list(range(1, log.last + 1))
        assert opened(folder).senders.last("a") == log.last


def test_torn_end_is_named_in_the_log(tmp_path, caplog):
    whole_log(tmp_path)
    torn = segments(tmp_path)[-1]
    torn.write_bytes(torn.read_bytes() + b"half of an entry")
    with caplog.at_level(logging.WARNING, "dask_elastic.checkpoint"):
        opened(CheckpointFolder(tmp_path))
    assert "16 bytes at the end were never completely written" in caplog.text


@pytest.mark.parametrize("index", [0, 1])
def test_missing_segment_is_found(tmp_path, index):
    whole_log(tmp_path)
    segments(tmp_path)[index].unlink()
    with pytest.raises(CheckpointCorrupt, match=r"entry|entries"):
        numbers(opened(CheckpointFolder(tmp_path)))


def test_entries_that_a_checkpoint_has_and_the_log_has_not_are_missing(tmp_path):
    log = opened(CheckpointFolder(tmp_path))
    with pytest.raises(CheckpointCorrupt, match="the entries behind 3"):
        numbers(log, after=3)


def test_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_elastic.checkpoint.spool.segment.FORMAT", 2)
    whole_log(tmp_path)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="newer version of dask_elastic"):
        opened(CheckpointFolder(tmp_path))


# lost writers


def test_lost_writer_that_continues_is_refused_and_never_read(folder):
    lost = opened(folder)
    lost.append(entries(1, 4))
    log = opened(folder)
    with pytest.raises(GenerationEnded, match="generation 2 of the job has taken over from 1"):
        lost.append([entry(5, "lost")])
    assert log.last == 4
    log.append([entry(5, "new"), entry(6, "new")])
    with pytest.raises(GenerationEnded):
        lost.append([entry(5, "lost"), entry(6, "lost"), entry(7, "lost")])
    again = opened(folder)
    assert numbers(again) == [1, 2, 3, 4, 5, 6]
    assert [each.sender for each in again.entries(4)] == ["new", "new"]
    assert again.senders.last("lost") == 0


@pytest.mark.parametrize("appends", [True, False])
def test_lost_writer_replaces_nothing_of_one_lost_before_that_a_later_generation_has_read(folder, appends):
    """Two workers are suspended before they write; both go on, the second one when the third has read the log."""
    first = opened(folder)
    first.append(entries(1, 2))
    second = opened(folder)
    with pytest.raises(GenerationEnded):
        first.append(entries(3, 4))
    third = opened(folder)
    third.take_over()
    # What it has read counts as durable: senders forget it.
    assert (third.last, third.senders.last("a")) == (4, 4)
    if appends:
        third.append(entries(5, 6))
    for write in (second.take_over, lambda: second.append([entry(3, "b"), entry(4, "a"), entry(5, "a")])):
        with pytest.raises(GenerationEnded):
            write()
    fourth = opened(folder)
    fourth.take_over()
    for log in (fourth, opened(folder)):
        assert numbers(log) == [1, 2, 3, 4, *([5, 6] if appends else [])]
        assert {each.sender for each in log.entries(0)} == {"a"}
        assert log.senders.last("b") == 0


def test_end_of_the_input_survives_generations_that_append_nothing(folder):
    log = opened(folder)
    log.append([*entries(1, 2), Entry(3, "", 0, None)])
    for _ in range(3):
        log = opened(folder)
        assert (log.last, log.ended, log.senders.last("a")) == (3, True, 2)
        log.take_over()


def test_generations_that_append_nothing_do_not_slow_the_next_start(folder, monkeypatch):
    opened(folder).append([*entries(1, 2), Entry(3, "", 0, None)])
    plain, reads = CheckpointFolder.read_unchecked, []

    def read(self, path, nbytes=0):
        reads.append(path)
        return plain(self, path, nbytes)

    monkeypatch.setattr(CheckpointFolder, "read_unchecked", read)
    needed = []
    for _ in range(8):
        reads.clear()
        log = opened(folder)
        log.take_over()
        needed.append(len(reads))
    assert max(needed) == 2
    assert (log.last, log.ended, numbers_and_end(log)) == (3, True, [1, 2, None])


def numbers_and_end(log):
    return [each.rows and each.rows["n"][0].as_py() for each in log.entries(0)]


def test_segment_that_a_lost_worker_deletes_while_the_next_generation_opens_the_log_is_not_needed(folder, monkeypatch):
    first = opened(folder)
    first.append(entries(1, 4))
    lost = opened(folder)
    lost.take_over()
    generation, plain = next_generation(folder), CheckpointFolder.sizes

    def sizes(self, path):
        found = plain(self, path)
        assert lost.delete_through(4) == 1
        return found

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFolder, "sizes", sizes)
        log = SpoolLog(folder, PATH, generation)
    assert (log.last, log.senders.last("a"), numbers(log, 4)) == (4, 4, [])


def test_generation_that_has_taken_over_and_never_starts_keeps_no_file_open(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    opened(folder).append(entries(1, 2))
    plain, made = LocalAppender.__init__, []

    def init(self, path):
        plain(self, path)
        made.append(self)

    monkeypatch.setattr(LocalAppender, "__init__", init)
    log = opened(folder)
    log.take_over()
    assert [appender._file.closed for appender in made] == [True]
    log.append(entries(3, 4))
    assert numbers(opened(folder)) == [1, 2, 3, 4]


def test_segments_without_a_list_of_earlier_ones_count(folder, monkeypatch):
    """Those of earlier versions."""

    def earlier_header(name, senders, *later):
        described = {"format": 1, "generation": name.generation, "first": name.first, "senders": senders.to_dict()}
        return encoded(Kind.HEADER, [json.dumps(described).encode()])

    with monkeypatch.context() as earlier:
        earlier.setattr("dask_elastic.checkpoint.spool.log.header", earlier_header)
        for last in (2, 4, 6):
            opened(folder).append(entries(last - 1, last))
    log = opened(folder)
    log.take_over()
    assert numbers(log) == numbers(opened(folder)) == [1, 2, 3, 4, 5, 6]


def test_append_that_failed_is_repeated_with_more_behind_it(folder, monkeypatch):
    log = opened(folder)
    log.append(entries(1, 2))
    kind = type(folder._files)
    plain = kind.append

    def fails(self, path, appender, buffers):
        if appender is not None:
            appender.write(list(buffers)[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kind, "append", fails)
    with pytest.raises(CheckpointError, match="No space left"):
        log.append(entries(3, 3))
    monkeypatch.setattr(kind, "append", plain)
    log.append(entries(3, 5))
    again = opened(folder)
    assert numbers(again) == [1, 2, 3, 4, 5]
    assert again.senders.last("a") == 5


def test_storage_that_cannot_be_read_gets_entries_once_however_often_they_are_repeated(folder, monkeypatch):
    log = opened(folder)
    log.append(entries(1, 2))
    plain, before = CheckpointFolder.sizes, len(folder.sizes(PATH))

    def fails(self, path):
        raise CheckpointError("permission denied")

    monkeypatch.setattr(CheckpointFolder, "sizes", fails)
    for last in (3, 4, 5):
        with pytest.raises(CheckpointError, match="permission denied"):
            log.append(entries(3, last))
    monkeypatch.setattr(CheckpointFolder, "sizes", plain)
    assert len(folder.sizes(PATH)) <= before + 1
    log.append(entries(3, 6))
    assert numbers(opened(folder)) == [1, 2, 3, 4, 5, 6]


def test_writer_whose_append_has_failed_writes_nothing_once_a_later_generation_has_begun(folder, monkeypatch):
    log = opened(folder)
    log.append(entries(1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "append", lambda *arguments: log._folder._attempt("append", "rows", _full))
        with pytest.raises(CheckpointError, match="No space left"):
            log.append(entries(3, 3))
    again = opened(folder)
    before = folder.sizes(PATH)
    with pytest.raises(GenerationEnded):
        log.append(entries(3, 4))
    assert folder.sizes(PATH) == before
    assert numbers(again) == [1, 2]


def _full():
    raise OSError(28, "No space left on device")


def test_entries_count_without_the_mark_behind_them(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    log = opened(folder)
    log.append(entries(1, 2))
    plain, writes = LocalAppender.write, []

    def write(self, buffers):
        writes.append(buffers)
        if len(writes) == 2:
            plain(self, [b"".join(bytes(buffer) for buffer in buffers)[:3]])
            raise OSError(28, "No space left on device")
        plain(self, buffers)

    monkeypatch.setattr(LocalAppender, "write", write)
    log.append(entries(3, 4))
    assert log.last == 4
    log.append(entries(5, 5))
    assert len(writes) == 4
    again = opened(folder)
    assert numbers(again) == [1, 2, 3, 4, 5]


# crashes


class Crashing:
    """Lets the process end before the n-th step that touches the storage, or in the midst of writing."""

    def __init__(self, monkeypatch, steps):
        self.left = steps
        for owner, name in (
            (LocalAppender, "write"),
            (LocalAppender, "sync"),
            (LocalFiles, "sizes"),
            (LocalFiles, "delete"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name), half=name == "write"))

    def _counted(self, plain, half):
        def counted(owner, *arguments):
            self.left -= 1
            if self.left < 0:
                if half:
                    whole = b"".join(arguments[0])
                    plain(owner, [whole[: len(whole) // 2]])
                raise Crash
            return plain(owner, *arguments)

        return counted


@pytest.mark.parametrize("steps", range(40))
def test_crash_between_any_two_steps_loses_nothing_that_was_appended(tmp_path, monkeypatch, steps):
    folder = CheckpointFolder(tmp_path)
    generation = next_generation(folder)
    appended = covered = 0
    with monkeypatch.context() as patched:
        Crashing(patched, steps)
        try:
            log = SpoolLog(folder, PATH, generation, segment_bytes=700)
            for first in range(1, 12, 2):
                log.append(entries(first, first + 1))
                appended = first + 1
                if first % 4 == 1:
                    covered = first
                    log.delete_through(covered)
            log.close()
        except Crash:
            pass
    again = opened(folder)
    assert appended <= again.last <= appended + 2
    assert numbers(again, covered) == list(range(covered + 1, again.last + 1))
    again.append(entries(again.last + 1, again.last + 1))
    assert numbers(opened(folder), covered) == list(range(covered + 1, again.last + 1))


@pytest.mark.parametrize("steps", range(12))
def test_crash_of_a_generation_that_takes_over_changes_nothing_or_settles_what_counts(tmp_path, monkeypatch, steps):
    folder = CheckpointFolder(tmp_path)
    first = opened(folder)
    first.append(entries(1, 2))
    lost = opened(folder)
    with pytest.raises(GenerationEnded):
        first.append(entries(3, 4))
    generation, taken = next_generation(folder), False
    with monkeypatch.context() as patched:
        Crashing(patched, steps)
        with suppress(Crash):
            log = SpoolLog(folder, PATH, generation)
            log.take_over()
            taken = True
            log.append(entries(5, 6))
    with pytest.raises(GenerationEnded):
        lost.append([entry(3, "b")])
    again = opened(folder)
    again.take_over()
    found = [(each.number, each.sender) for each in again.entries(0)]
    # Without the header, the lost worker may have replaced entries that none has acknowledged.
    if taken or found != [(1, "a"), (2, "a"), (3, "b")]:
        assert found in ([(number, "a") for number in range(1, last + 1)] for last in (4, 6))
    assert found == [(each.number, each.sender) for each in opened(folder).entries(0)]


def test_crashes_reach_every_step(tmp_path, monkeypatch):
    """The test above with so many steps does not crash: the parameters cover all of them."""
    crashing = Crashing(monkeypatch, 40)
    log = SpoolLog(CheckpointFolder(tmp_path), PATH, 1, segment_bytes=700)
    for first in range(1, 12, 2):
        log.append(entries(first, first + 1))
        log.delete_through(first if first % 4 == 1 else 0)
    assert 0 <= crashing.left < 20


# deletion and senders


def test_segments_are_deleted_when_all_entries_are_covered(folder):
    log = opened(folder, segment_bytes=1)
    for number in range(1, 6):
        log.append([entry(number)])
    assert log.delete_through(2) == 2
    assert log.delete_through(2) == 0
    again = opened(folder)
    assert (again.first, again.last) == (3, 5)
    assert numbers(again, 2) == [3, 4, 5]
    assert again.senders.last("a") == 5
    with pytest.raises(CheckpointCorrupt, match="entries 3 to 5"):
        numbers(again, 1)
    assert log.delete_through(5) == 2
    assert opened(folder).last == 5


def test_segments_that_do_not_count_are_deleted_too(folder):
    first = opened(folder)
    first.append(entries(1, 2))
    second = opened(folder)
    third = opened(folder)
    third.take_over()
    with pytest.raises(GenerationEnded):
        second.append([entry(3, "b")])
    log = opened(folder)
    log.take_over()
    log.append(entries(3, 4))
    log.delete_through(0)
    assert {name.split("-")[0] for name in folder.sizes(PATH)} == {"00000001", "00000003", "00000004"}
    assert numbers(opened(folder)) == [1, 2, 3, 4]


def test_senders_are_forgotten_in_the_order_in_which_they_were_last_seen():
    senders = SenderTable(most=2)
    for sender, sequence in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        assert senders.admit(sender, sequence)
    assert senders.to_dict() == {"a": 2, "c": 1}
    copied = senders.copy()
    copied.admit("a", 3)
    assert (senders.last("a"), copied.last("a"), senders.last("b")) == (2, 3, 0)
    assert senders.admit("", 0)
    assert senders.admit("", 0)
