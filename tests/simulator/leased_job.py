"""A simulated job of a few homes with leases: nodes are suspended and cut off, and a coordinator restarts the job."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dask_elastic.control.lease import CLOCK_ERROR, GrantedLeases, Lease
from dask_elastic.simulator.schedule import Schedule

HOMES = 3
LEASE = 0.30
REPORT = 0.06
SILENT = 0.15
"""Virtual seconds: the length of a lease, between two reports, and without a report until a node is restarted."""

STEPS = 6_000
FAULTS = 12
LONGEST_FAULT = 1_500
"""Steps of a run, faults in it, and steps that a suspension or a cut lasts at most."""

DRIFT = 0.9 * CLOCK_ERROR
"""Clocks of nodes are faster or slower by up to this share, and begin anywhere."""


class Overlap(AssertionError):
    """Two generations of a home have emitted at the same time."""


@dataclass
class Part:
    """The part of one generation on one node.

    Parameters
    ----------
    node, generation : int
        Which.
    """

    node: int
    generation: int
    lease: Lease = field(default_factory=Lease)
    ended: bool = False

    def end(self):
        """Let its threads stop when they look next, and end its lease at once."""
        self.ended = True
        self.lease.end()


class LeasedJob:
    """Homes that emit in a loop, and a coordinator that restarts all of them when one is silent.

    Parameters
    ----------
    seed : int
        Determines the order of all steps, and the faults.
    """

    def __init__(self, seed: int):
        random = np.random.default_rng([seed, 7])
        self.schedule = Schedule(random, keep_history=True)
        self.generation = 0
        self.restarts = 0
        self.emitted = 0
        self.late = 0
        self.cut_off: set[int] = set()
        self.heard = dict.fromkeys(range(HOMES), 0.0)
        self.leases = GrantedLeases()
        self._clocks = [(1 + DRIFT * (2 * random.random() - 1), 1e6 * random.random()) for _ in range(HOMES)]
        self._begin()
        self.schedule.spawn("coordinator", self._coordinate())
        for at in random.integers(1, STEPS, FAULTS).tolist():
            self.schedule.at(at, self._fault(random))

    def clock(self, node):
        """The clock of a node, which counts while the node is suspended."""
        speed, offset = self._clocks[node]
        return offset + speed * self.schedule.now

    def _fault(self, random):
        node, lasts = int(random.integers(HOMES)), int(random.integers(1, LONGEST_FAULT))
        nodes = self.schedule.stopped if random.random() < 0.6 else self.cut_off

        def begin():
            nodes.add(node)
            self.schedule.at(self.schedule.steps + lasts, lambda: nodes.discard(node))

        return begin

    def _begin(self):
        """Start the next generation on all nodes; a call to a node that is suspended or cut off arrives later."""
        self.generation += 1
        self.leases = GrantedLeases()
        self.parts = [Part(node, self.generation) for node in range(HOMES)]
        self.heard = dict.fromkeys(range(HOMES), self.schedule.now)
        for part in self.parts:
            self.schedule.spawn(f"home {part.node} of {part.generation}", self._emit(part), part.node)
            self.schedule.spawn(f"reports {part.node} of {part.generation}", self._report(part), part.node)

    def _emit(self, part):
        yield lambda: part.node not in self.cut_off
        while not part.ended:
            # A thread may be interrupted for any time between its look for the end and its emission.
            yield None
            if not part.lease.holds(self.clock(part.node)):
                self.late += part.generation != self.generation
                continue
            # A real home checks and emits in one go as well, except for the instant that fences at receivers cover.
            self.emitted += 1
            if part.generation != self.generation:
                raise Overlap(f"home {part.node} of generation {part.generation} emits in {self.generation}")

    def _report(self, part):
        while not part.ended:
            requested, sent = self.clock(part.node), self.schedule.now
            yield lambda: part.node not in self.cut_off
            granted = self._take_report(part)
            yield None
            # The answer may take as long as the node is suspended or cut off.
            yield lambda: part.node not in self.cut_off
            part.lease.renew(self._begins(part, requested), granted)
            yield lambda sent=sent: self.schedule.now > sent + REPORT

    def _begins(self, part, requested):
        """The moment from which a lease counts."""
        return requested

    def _take_report(self, part):
        if part.generation != self.generation:
            return 0.0
        self.heard[part.node] = self.schedule.now
        return self.leases.grant(part.node, self.schedule.now, LEASE)

    def _coordinate(self):
        while self.schedule.steps < STEPS:
            yield None
            now = self.schedule.now
            if any(now - at > SILENT for at in self.heard.values()):
                yield from self._restart()
        for part in self.parts:
            part.end()

    def _restart(self):
        self.leases.close()
        for part in self.parts:
            yield None
            if part.node not in self.cut_off and part.node not in self.schedule.stopped:
                part.end()
                self.leases.end(part.node)
        yield lambda: not self.leases.held(self.schedule.now)
        self.restarts += 1
        self._begin()

    def run(self):
        """Run it to the end; raises `Overlap`."""
        while self.schedule.steps < 2 * STEPS and self.schedule.step():
            pass
        return self
