"""Homes with leases: whatever is suspended or cut off, a home emits nothing once another one has taken its place."""

from __future__ import annotations

from collections import Counter

import pytest
from leased_job import LEASE, LeasedJob, Overlap

from dask_elastic.control.lease import GrantedLeases, Lease

SEEDS = 16
MOST_SEEDS = 100


def test_no_home_emits_beside_the_one_that_replaced_it():
    happened = Counter()
    for seed in range(SEEDS):
        job = LeasedJob(seed).run()
        happened["restarts"] += job.restarts
        happened["emitted"] += job.emitted
        happened["held back after a restart"] += job.late
    assert happened["restarts"] > 3 * SEEDS
    assert happened["emitted"] > 1_000 * SEEDS
    assert happened["held back after a restart"] > SEEDS


def lease_is_ignored(monkeypatch):
    monkeypatch.setattr(Lease, "holds", lambda self, now: True)


def lease_is_renewed_by_own_clock_only(monkeypatch):
    real = Lease.renew
    monkeypatch.setattr(Lease, "renew", lambda self, requested, seconds: real(self, requested, LEASE))


def lease_counts_from_its_answer(monkeypatch):
    monkeypatch.setattr(LeasedJob, "_begins", lambda self, part, requested: self.clock(part.node))


def coordinator_does_not_wait_for_leases(monkeypatch):
    monkeypatch.setattr(GrantedLeases, "held", lambda self, now: {})


def coordinator_trusts_that_clocks_are_equally_fast(monkeypatch):
    monkeypatch.setattr("dask_elastic.control.lease.CLOCK_ERROR", -0.01)


def ended_part_keeps_its_lease(monkeypatch):
    monkeypatch.setattr(Lease, "end", lambda self: None)


def earlier_generation_gets_leases(monkeypatch):
    monkeypatch.setattr(
        LeasedJob, "_take_report", lambda self, part: self.leases.grant(part.node, self.schedule.now, LEASE)
    )


MUTANTS = [
    value for value in dict(globals()).values() if callable(value) and getattr(value, "__module__", "") == __name__
]
MUTANTS = [value for value in MUTANTS if not value.__name__.startswith("test_")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            LeasedJob(seed).run()
        except Overlap:
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
