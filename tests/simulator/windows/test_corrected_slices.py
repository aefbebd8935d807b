"""Late rows correct windows that share slices, as those with a state for each instance, under moves and losses."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import window_job
from corrected_scenario import CorrectedScenario, LateScenario, corrections_of, kinds_of_corrections

from dask_elastic.executor.windows import closing, corrected_slices
from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.executor.windows.corrected_slices import CorrectedSlices
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.state.window_fields import NO_END

SEEDS, LATE_SEEDS = 8, 10
MOST_SEEDS = 60
TRIED_FIRST = (22,)
"""Seeds that find what most others do not."""


@pytest.fixture(autouse=True)
def _few_keys(monkeypatch):
    """Let several late rows of a key be of one instance."""
    monkeypatch.setattr(window_job, "KEYS", 2)


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_each_instance_has_one_result_and_its_corrections(outages, monkeypatch):
    corrected, happened = corrections_of(monkeypatch), Counter()
    for seed in range(SEEDS):
        happened += CorrectedScenario(seed, outages).check().happened()
    for what in ("checkpoints", "moves across nodes", "corrected", "late"):
        assert happened[what] > SEEDS // 4, what
    for what in ("merged", "without slices", "again"):
        assert corrected[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


def test_results_are_corrected_with_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in range(2):
        CorrectedScenario(seed).check()


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_results_are_corrected_in_the_task_of_another_compute(place):
    for seed in range(2):
        CorrectedScenario(seed, place=place).check()


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_corrections_do_not_depend_on_changes_of_the_plan(outages, monkeypatch):
    made, happened = kinds_of_corrections(monkeypatch), Counter()
    for seed in range(LATE_SEEDS):
        happened += LateScenario(seed, outages).check().happened()
    for what in ("rows of instances", "closes of both", "checkpoints", "moves across nodes", "corrected", "late"):
        assert happened[what] > LATE_SEEDS // 4, what
    for what in ("slices", "instances", "both"):
        assert made[what] > LATE_SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


# mutants


def late_rows_are_added_to_slices_first(monkeypatch):
    """A row that is late for one instance and on time for another counts twice in the first one."""
    real = WindowLogic._updated
    held = []

    def updated(self, bound, rows, hashes, assigned, reached):
        return held.pop()() if held else real(self, bound, rows, hashes, assigned, reached)

    real_of = CorrectedSlices.of

    def of(self, bound, rows, hashes, times, reached):
        logic, assigned = logics[id(self)], self._slices.of_points(times, reached)
        outputs = real(logic, bound, rows, hashes, assigned, reached)
        held.append(lambda: outputs)
        return real_of(self, bound, rows, hashes, times, reached)

    real_init = WindowLogic.__init__
    logics = {}

    def init(self, *args, **options):
        real_init(self, *args, **options)
        logics[id(self._corrected)] = self

    monkeypatch.setattr(WindowLogic, "__init__", init)
    monkeypatch.setattr(WindowLogic, "_updated", updated)
    monkeypatch.setattr(CorrectedSlices, "of", of)


def slices_in_other_places_are_missed(monkeypatch):
    """Only the first place of a slice is looked up."""
    monkeypatch.setattr(SlicePlaces, "identities", lambda self, numbers: [self._at_level(numbers, 0)])


def slices_of_other_times_are_taken(monkeypatch):
    """What is in the place of a slice is taken for it."""
    real = CorrectedSlices._found

    def found(self, bound, hashes, checks, numbers, owners):
        monkeypatch.setattr(self._places, "starts", lambda numbers: AnyTime(numbers))
        return real(self, bound, hashes, checks, numbers, owners)

    class AnyTime(np.ndarray):
        def __new__(cls, numbers):
            return np.asarray(numbers).view(cls)

        def take(self, *args):
            return AnyTime(np.asarray(self).take(*args))

        def __eq__(self, other):
            return np.ones(len(other), np.bool_)

    monkeypatch.setattr(CorrectedSlices, "_found", found)


def corrections_begin_without_the_rows_before(monkeypatch):
    real = CorrectedSlices._before

    def before(self, bound, found, starts, ends):
        _, revisions = real(self, bound, found, starts, ends)
        return [field.initially(len(starts)) for field in bound.bundle.fields], revisions

    monkeypatch.setattr(CorrectedSlices, "_before", before)


def corrections_are_not_kept(monkeypatch):
    """Each late row corrects the result of the slices."""
    monkeypatch.setattr(CorrectedSlices, "write", lambda self, made: [] if made is None else made.outputs)


def corrected_instance_is_never_removed(monkeypatch):
    monkeypatch.setattr(CorrectedSlices, "expire", lambda self, bound, shards, until: None)
    real = closing.merged_slices

    def merged(bound, found, *args):
        made = real(bound, found, *args)
        return made._replace(expired=made.expired & ~closing.has_mark(found.values[bound.own]))

    monkeypatch.setattr(closing, "merged_slices", merged)


def corrected_instance_is_removed_with_its_close(monkeypatch):
    """The allowed lateness of corrected instances is forgotten."""
    real = CorrectedSlices.expire

    def expire(self, bound, shards, until):
        self._owners = None
        real(self, bound, shards, until + self._slices.lateness)

    monkeypatch.setattr(CorrectedSlices, "expire", expire)


def slices_leave_with_their_instances(monkeypatch):
    """Slices are removed before the allowed lateness has passed."""
    real = EventCells.expired
    monkeypatch.setattr(
        EventCells,
        "expired",
        lambda self, starts, ends, reached: real(self, starts, ends, reached + self.lateness),
    )


def first_row_of_a_key_counts_as_a_correction(monkeypatch):
    real = CorrectedSlices._before

    def before(self, bound, found, starts, ends):
        values, revisions = real(self, bound, found, starts, ends)
        return values, np.maximum(revisions, 1)

    monkeypatch.setattr(CorrectedSlices, "_before", before)


def corrections_are_of_open_instances_too(monkeypatch):
    """Rows that are late for one instance correct the open ones that contain them."""
    real = EventCells.of_closed
    monkeypatch.setattr(EventCells, "of_closed", lambda self, times, reached: real(self, times, reached + 5))


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith(("_", "test"))
]


# of changes of the plan


def corrections_lack_the_rows_of_the_instance(monkeypatch):
    """Corrected instances are made from slices alone."""
    monkeypatch.setattr(corrected_slices, "merge", lambda bundle, of_slices, own: of_slices)


def corrections_lack_the_slices(monkeypatch):
    """No slices are known that instances with late rows may have."""
    real_init = CorrectedSlices.__init__

    def init(self, *args):
        real_init(self, *args)
        self._kinds = SimpleNamespace(last_end=lambda bound, of_instances: NO_END)

    monkeypatch.setattr(CorrectedSlices, "__init__", init)


def partials_of_instances_count_as_corrected(monkeypatch):
    """Late rows are added to the rows since a change, without those before it."""
    real = CorrectedSlices._before

    def before(self, bound, found, starts, ends):
        gather = self._session.gather

        def gathered(located, *fields):
            values = gather(located, *fields)
            values[bound.own + 4] = np.where(values[bound.own + 1] == NO_END, values[bound.own + 4], 0)
            return values

        with monkeypatch.context() as patched:
            patched.setattr(self._session, "gather", gathered)
            return real(self, bound, found, starts, ends)

    monkeypatch.setattr(CorrectedSlices, "_before", before)


def late_rows_are_added_to_instances_as_well(monkeypatch):
    """Rows of instances are added to closed ones, too, which they correct besides."""
    real = EventCells.of_points

    def of_points(self, times, reached, side=None):
        return real(self, times, reached - self.lateness if self._apart else reached, side)

    monkeypatch.setattr(EventCells, "of_points", of_points)


def open_instances_close_without_their_own_rows(monkeypatch):
    """Instances with rows of their own are taken for corrected ones, which have closed."""
    real = SlicePlaces._searched
    monkeypatch.setattr(
        SlicePlaces, "_searched", lambda self, bound, shards, closed: real(self, bound, shards, closed + 100)
    )


def instances_that_no_row_corrects_stay(monkeypatch):
    """Only corrected instances are removed when their lateness has passed, unless others are searched."""
    monkeypatch.setattr(CorrectedSlices, "added", lambda self, ends: None)
    real = CorrectedSlices.expire

    def expire(self, bound, shards, until):
        self._owners = self._store.owner_version
        real(self, bound, shards, until)

    monkeypatch.setattr(CorrectedSlices, "expire", expire)


CHANGE_MUTANTS = [
    corrections_lack_the_rows_of_the_instance,
    corrections_lack_the_slices,
    partials_of_instances_count_as_corrected,
    late_rows_are_added_to_instances_as_well,
    open_instances_close_without_their_own_rows,
    instances_that_no_row_corrects_stay,
]


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [(mutant, CorrectedScenario) for mutant in MUTANTS] + [(mutant, LateScenario) for mutant in CHANGE_MUTANTS],
    ids=lambda value: value.__name__,
)
def test_mutant_is_found(mutant, scenario, monkeypatch):
    mutant(monkeypatch)
    for seed in (*TRIED_FIRST, *range(MOST_SEEDS)):
        if scenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
