"""A job of a source, an operator and a sink, as one of its nodes sees it; and its part on a node, with a fake node."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

from dask_elastic.executor import events
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.home_calls import CopyState
from dask_elastic.runtime.protocol.job_spec import ComponentSummary, JobSpec
from dask_elastic.runtime.transport.lease_gate import LeaseGate
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.homes.arrivals import Arrivals
from dask_elastic.runtime.worker.homes.home_moves import HomeMoves
from dask_elastic.runtime.worker.idle_watch import IdleWatch
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.members import Members
from dask_elastic.vocab.errors import ElasticError, NodeLost
from dask_elastic.vocab.identity import ExecutorId

NODES = ("zero", "one", "two", "three", "four")
ROWS, OTHER, FIRST, SECOND = ExecutorId("rows", 0), ExecutorId("rows", 1), ExecutorId("op", 0), ExecutorId("op", 1)
BEFORE = HomeTable.initial((1, 2))
AFTER = BEFORE.moved(0, to=3)
SPACE = KeySpace(2, 4)


def spec(node=0):
    """A source on nodes 0 and 1, executors on nodes 1 and 2, and a sink beside these."""
    summaries = (
        ComponentSummary("rows", "source", (), ("rows",), 2, shards=1),
        ComponentSummary("op", "compute", ("rows",), ("op",), 2, shards=4),
        ComponentSummary("out", "sink", ("op",), ("out",), None, shards=1),
    )
    homes = {"rows": (0, 1), "op": (1, 2)}
    return JobSpec("job", 1, NODES, node, summaries, homes, {"op": ({1: 1}, {2: 1})}, job_options({}), guests=(3, 4))


class Node:
    """A node that keeps what is sent to the others."""

    def __init__(self):
        self.sent = []
        self.unreachable = set()
        self.reports = 0
        self.answer = Future()
        self.calls = []
        self.portions = []
        self.receive = lambda call: None

    def peer(self, address):
        """Return a connection."""
        if address in self.unreachable:
            raise NodeLost(f"the channel to {address} is closed")
        return Peer(self, address)

    def call_worker(self, address, call):
        """Keep a call that hands an executor over; portions of state go to `receive`."""
        if not isinstance(call, CopyState):
            self.calls.append((address, call))
            return self.answer
        self.portions.append(call)
        answer = Future()
        try:
            answer.set_result(self.receive(call))
        except ElasticError as error:
            answer.set_exception(error)
        return answer

    def report_soon(self):
        """Count the call."""
        self.reports += 1


class Peer:
    """Keeps what is sent: kind, receiver, arguments."""

    def __init__(self, node, address):
        self.node, self.address = node, address

    def __getattr__(self, name):
        kind = name.removeprefix("send_")
        return lambda generation_id, *arguments: self.node.sent.append((kind, self.address, *arguments))


class Part:
    """A job's part on a node, with threads that start nothing."""

    def __init__(self, here):
        self.node = Node()
        self.members = Members(spec(here))
        self.threads = JobThreads("job", self.fail)
        self.threads.start = lambda name, run: None
        self.homes, self.remotes, self.sources, self.checkpoints = {}, {}, {}, None
        components = {"rows": SimpleNamespace(exits=[SimpleNamespace(target="op")]), "op": SimpleNamespace(exits=[])}
        idle_watch, lease = IdleWatch(lambda: None), LeaseGate(needed=False)
        self.exchange = Exchange(
            self.members, components, self.homes, {}, self.node.peer, lambda: False, idle_watch, lease
        )
        self.expected = {}
        self.stores = SimpleNamespace(
            remove=lambda executor, store: self.events.append(("store", executor)),
            expect=self.expected.__setitem__,
            forget=self.expected.pop,
        )
        self.factory = SimpleNamespace(executor=self.executor, home=self.threads_of, store=self.store)
        self.events, self.errors = [], []
        self.moves, self.arrivals = HomeMoves(self, self.node), Arrivals(self, self.node)

    def store(self, identity):
        """Return a store of an executor."""
        return PrimaryState(SPACE.shards, SPACE.shard_of, threading.Lock)

    def executor(self, identity, first, store=None):
        """Return a new executor at home here."""
        here, inputs = self.members.node, [ROWS, OTHER]
        return ElasticExecutor(identity, SPACE, here, first, inputs, threading.Lock, store=store)

    def threads_of(self, executor):
        """Return the threads of an executor."""
        return ExecutorThreads(executor, (), None, self.threads, self.exchange, print, None, self.moves.depart)

    def expect(self, identity):
        """Note the call."""
        self.events.append(("expect", identity))

    def discard(self, identity):
        """Note the call."""
        self.events.append(("discard", identity))

    def add_home(self, home):
        """Take an executor."""
        self.homes[home.identity] = home

    def end_remote(self, remote):
        """End remote tasks."""
        remote.close()
        del self.remotes[FIRST]

    def fail(self, error):
        """Note the error."""
        self.errors.append(error)


def end_marks(part):
    """The remote instance of the source switches, too."""
    part.exchange.receive_end_mark(FIRST, events.EndMark(ROWS, 1))


def drained(part):
    """Run the cut of the executor in a thread, as its driver asks for; returns the thread."""
    started = []
    part.threads.start = lambda name, run: started.append(run)
    end_marks(part)
    [cut] = started
    thread = threading.Thread(target=part.threads.guarded(cut), daemon=True)
    thread.start()
    return thread


def fenced(part, wait_for):
    """The nodes that have got the fence, once all have."""
    wait_for(lambda: sum(kind == "fence" for kind, *_ in part.node.sent) == 4)
    return {NODES.index(address) for kind, address, *_ in part.node.sent if kind == "fence"}


def call_of(old, new, wait_for):
    """Drain an executor at its old home, and return the call that hands it over."""
    old.moves.begin(FIRST, AFTER, 2)
    drained(old)
    fenced(old, wait_for)
    for node in (0, 2, 3):
        old.moves.fence_passed(FIRST, node)
    wait_for(lambda: old.node.calls)
    return old.node.calls[0][1]
