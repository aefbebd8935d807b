"""Seeded simulations of windows that share slices, and whose results late rows correct."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from sharing_scenario import SharingScenario
from window_job import TIME
from window_scenario import WindowScenario

from dask_elastic.executor.windows import corrected_slices
from dask_elastic.executor.windows.corrected_slices import CorrectedSlices
from dask_elastic.topology.windowing import EventWindow, Windowing

CORRECTED = (
    Windowing((EventWindow(0, 30, 10),), (TIME,), allowed_lateness=10),
    Windowing((EventWindow(0, 10, 10), EventWindow(0, 30, 30), EventWindow(5, 20, 10)), (TIME,), allowed_lateness=25),
    Windowing((EventWindow(3, 40, 10),), (TIME,), allowed_lateness=37),
    Windowing((EventWindow(0, 20, 10),), (TIME,), allowed_lateness=3),
    Windowing((EventWindow(0, 8, 2), EventWindow(0, 60, 20)), (TIME,), allowed_lateness=30),
)

LATE = [replace(windowing, emit=emit) for windowing in CORRECTED for emit in ("closed", "updates")]


@dataclass(frozen=True)
class CorrectedScenario(WindowScenario):
    """A `WindowScenario` with windows that share slices and may be corrected."""

    @property
    def windowing(self) -> Windowing:
        found = CORRECTED[self.seed % len(CORRECTED)]
        assert found.shares
        return found


@dataclass(frozen=True)
class LateScenario(SharingScenario):
    """A `SharingScenario` with windows whose results late rows correct."""

    @property
    def windowing(self) -> Windowing:
        found = LATE[self.seed % len(LATE)]
        assert found.changes_sharing
        return found


def corrections_of(monkeypatch) -> Counter[str]:
    """Return a counter of corrected instances, and of those merged from slices, from now on."""
    counted: Counter[str] = Counter()
    real = CorrectedSlices._of_slices

    def of_slices(self, bound, hashes, *args):
        values, having = real(self, bound, hashes, *args)
        counted["merged"] += len(having)
        counted["without slices"] += len(hashes) - len(having)
        return values, having

    real_before = CorrectedSlices._before

    def before(self, bound, found, starts, ends):
        values, revisions = real_before(self, bound, found, starts, ends)
        counted["again"] += int((revisions > 1).sum())
        return values, revisions

    monkeypatch.setattr(CorrectedSlices, "_of_slices", of_slices)
    monkeypatch.setattr(CorrectedSlices, "_before", before)
    return counted


def kinds_of_corrections(monkeypatch) -> Counter[str]:
    """Return a counter of what corrected instances are made from, from now on."""
    counted: Counter[str] = Counter()
    real = corrected_slices.merge

    def merge(bundle, of_slices, own):
        counted["slices"] += int((of_slices.present & ~own.present).sum())
        counted["instances"] += int((own.present & ~of_slices.present).sum())
        counted["both"] += int((own.present & of_slices.present).sum())
        return real(bundle, of_slices, own)

    monkeypatch.setattr(corrected_slices, "merge", merge)
    return counted
