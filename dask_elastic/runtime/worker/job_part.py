"""One job's part on one node: its sources, executors, remote tasks and sinks, and the ways between them."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask_elastic.executor import events
from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.remote import RemotePart
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.protocol.job_spec import STATIC, VACANT, JobSpec
from dask_elastic.runtime.transport.credit import Aborted, CreditGate
from dask_elastic.runtime.transport.fence import Fence
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.buffers.output_buffer import OutputBuffer
from dask_elastic.runtime.worker.dead_letters import DeadLetters
from dask_elastic.runtime.worker.downstream import Downstream
from dask_elastic.runtime.worker.executor_driver import ExecutorDriver
from dask_elastic.runtime.worker.memory import HINT
from dask_elastic.runtime.worker.remote_driver import RemoteDriver
from dask_elastic.runtime.worker.sink_thread import SinkThread
from dask_elastic.runtime.worker.source_thread import SourceThread
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import SinkOperator, SourceOperator
from dask_elastic.topology.source import Source
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import StateMemoryExceeded
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import Stamp, StartTask, ToHome, ToRemote
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.node import NodeRuntime


class JobPart:
    """Hosts what a job runs on this node.

    Parameters
    ----------
    runtime : NodeRuntime
        The node: peers, and the way to the scheduler.
    spec : JobSpec
        What to host.
    components : iterable of Component
        The topology's components, user code included.
    """

    def __init__(self, runtime: NodeRuntime, spec: JobSpec, components: Iterable[Component]):
        self.runtime = runtime
        self.spec = spec
        self.job = spec.job
        self.node = spec.node
        self.components = {component.name: component for component in components}
        self.spaces = {
            s.name: KeySpace(len(spec.homes[s.name]), s.shards) for s in spec.summaries if s.kind == "compute"
        }
        self.downstream = Downstream(self)
        self.dead_letters = DeadLetters()
        self.outbox = OutputBuffer(self._ask, spec.nodes[spec.node], lambda: self.ended)
        self.ended = False
        self.told_of_end = False
        self.refused = 0
        self.lost: set[str] = set()
        self.told = self.absolved = 0
        self._gone: set[int] = set()
        self._change = -1
        self.error: BaseException | None = None
        self.sources: dict[ExecutorId, SourceThread] = {}
        self.homes: dict[ExecutorId, ExecutorDriver] = {}
        self.sinks: dict[ExecutorId, SinkThread] = {}
        self.remotes: dict[ExecutorId, RemoteDriver] = {}
        self._withheld: deque[tuple[ExecutorId, ExecutorId, int]] = deque()
        self._gates: dict[tuple[ExecutorId, ExecutorId], CreditGate] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._build()
        self._remaining: set[ExecutorId] = {*self.sources, *self.homes, *self.sinks}

    # building

    def _build(self) -> None:
        for name, component in self.components.items():
            match component.operator:
                case SourceOperator():
                    self._build_sources(name, component)
                case SinkOperator() as operator:
                    inputs = self.spec.sink_inputs(name, self.node)
                    if inputs:
                        identity = ExecutorId(name, self.node)
                        self.sinks[identity] = SinkThread(
                            self, identity, operator, self.downstream.inputs(identity, inputs)
                        )
                case _:
                    self._build_executors(name, component)

    def _build_sources(self, name: str, component: Component) -> None:
        instances = self.spec.instances(name)
        assert isinstance(component.operator, SourceOperator)
        for identity in instances:
            if self.spec.node_of(identity) == self.node:
                emitter = Emitter(name, component.outputs, self.spaces, self._error_policy(), self.node)
                self.sources[identity] = SourceThread(self, identity, component.operator, len(instances), emitter)

    def epoch_buffer(self, identity: ExecutorId, source: Source) -> EpochBuffer:
        """Return the mailbox of an instance of a source to which epochs are handed over."""
        ask = functools.partial(self._ask, source=identity.component, instance=identity.index)
        return EpochBuffer(source.staging_bytes, self.runtime.spill_directory, ask, self.runtime.in_thread)

    def _ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the scheduler in the name of this run of the job."""
        return self.runtime.ask(operation, job=self.job, run=self.spec.generation, **arguments)

    def _build_executors(self, name: str, component: Component) -> None:
        options = self.spec.options
        limits = ExecutorLimits(options.inbox_time, options.balance_threshold)
        inputs = self.spec.inputs_of(name)
        timed = self.downstream.timed(inputs)
        for identity in self.spec.instances(name):
            if self.spec.node_of(identity) == self.node:
                cores = self.spec.cores[name][identity.index]
                space = self.spaces[name]
                executor = ElasticExecutor(identity, space, self.node, cores, inputs, threading.Lock, limits, timed)
                executor.store.reserve = self.runtime.memory.reserve
                self.homes[identity] = ExecutorDriver(self, executor, component)

    def _error_policy(self) -> ErrorPolicy:
        return ErrorPolicy("skip" if self.spec.options.on_error == "skip" else "fail", self.dead_letters.add)

    def processor(self, component: Component, task: int, store: KeyedStore, home: int) -> Processor:
        """Return what a task of a component runs."""
        return Processor(component, task, store, self.spaces, self._error_policy(), home)

    # life

    def start_executors(self) -> None:
        """Start everything but the sources: all nodes do this before any source starts."""
        for sink in self.sinks.values():
            sink.start()
        for home in self.homes.values():
            home.start()

    def start_sources(self) -> None:
        """Let the tuples flow."""
        for source in self.sources.values():
            source.start()
        if not self._remaining:
            self.runtime.job_part_ended(self.job)

    def drain(self) -> None:
        """Read no further; process what was read."""
        for source in self.sources.values():
            source.stop()

    def end(self, error: BaseException | None = None) -> None:
        """Stop at once; state and measures stay readable."""
        with self._lock:
            if self.ended:
                return
            self.error = error
            self.ended = True
            gates = list(self._gates.values())
        for gate in gates:
            gate.abort()
        parts: list[SourceThread | ExecutorDriver | RemoteDriver | SinkThread] = [
            *self.sources.values(),
            *self.homes.values(),
            *self.remotes.values(),
            *self.sinks.values(),
        ]
        for part in parts:
            part.abort()

    def join(self, timeout: float) -> list[str]:
        """Wait for the threads to end; returns the names of those that have not."""
        deadline = time.monotonic() + timeout
        # One that is being started at this very moment ends by itself.
        threads = [thread for thread in self._threads if thread.ident is not None]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    def fail(self, error: BaseException) -> None:
        """End the job everywhere because of an error."""
        first = not self.ended
        self.end(error)
        if first:
            self.runtime.job_failed(self.job, error)

    def thread(self, name: str, run: Callable[[], None]) -> None:
        """Run something on a thread of its own; whatever it raises fails the job."""

        def guarded() -> None:
            try:
                run()
            except Aborted:
                return
            except BaseException as error:  # reported to the client as the job's error
                self.fail(error)

        thread = threading.Thread(target=guarded, name=f"elastic-{self.job}-{name}", daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive() or t.ident is None]
            self._threads.append(thread)
        thread.start()

    # nodes that come and go

    def node_lost(self, address: str, error: BaseException, died: bool) -> None:
        """Go on without a node that has been given up, or fail if that cannot be.

        Homes do again elsewhere what their tasks there had to do. Remote tasks here of a home there end. Nodes that are
        both home to something send each other tuples, and nobody else has these.
        """
        if self.ended or address not in self.spec.nodes:
            return
        node = self.spec.nodes.index(address)
        settled = self.spec.settled
        if node in settled and self.node in settled:
            if not self.complete:
                self.fail(error)
            return
        self.lost.add(address)
        self._drop_remotes(node)
        if node not in settled:
            self._node_gone(node, died)

    def at_hand(self, address: str) -> list[tuple[str, int]]:
        """Return what remote tasks on another node are processing: operators and batches."""
        if self.ended or address not in self.spec.nodes:
            return []
        node = self.spec.nodes.index(address)
        return [
            (home.identity.component, number) for home in self.homes.values() for number in home.at_hand(node).values()
        ]

    def absolve(self) -> bool:
        """Note that nothing is left of what the scheduler was `told` that a node may have died of, once that is so."""
        told = self.told
        if told == self.absolved or any(home.has_suspects for home in self.homes.values()):
            return False
        self.absolved = told
        return True

    def _drop_remotes(self, home: int) -> None:
        for executor, remote in list(self.remotes.items()):
            if remote.home == home:
                remote.close()
                del self.remotes[executor]

    def change_members(
        self, change: int, nodes: tuple[str, ...], guests: tuple[int, ...], died: Collection[str] = ()
    ) -> None:
        """Learn of nodes that have left, some of which `died`, or joined; there are channels to those that joined.

        What was said before the last `change` that is known here is out of date.
        """
        if change <= self._change:
            return
        self._change = change
        before, after = self.spec.nodes, nodes
        self.spec = replace(self.spec, nodes=nodes, guests=guests)
        for node in range(max(len(before), len(after))):
            old, new = (nodes[node] if node < len(nodes) else VACANT for nodes in (before, after))
            if old != new:
                self._change_member(node, old, new, old in died)

    def _change_member(self, node: int, old: str, new: str, died: bool) -> None:
        self.lost.discard(old)
        if old != VACANT:
            self._node_gone(node, died)
        if new != VACANT and node in self._gone:
            self._gone.remove(node)
            for home in self.homes.values():
                home.node_back(node)

    def _node_gone(self, node: int, died: bool) -> None:
        if node not in self._gone:
            self._gone.add(node)
            for home in self.homes.values():
                home.node_gone(node, died)

    # the ways between instances

    def deliver(self, origin: ExecutorId, deliveries: Iterable[Delivery]) -> None:
        """Hand batches to the next receivers; blocks while their windows are full."""
        total = 0
        for target, batch in deliveries:
            nbytes = batch.nbytes
            total += nbytes
            self._gate(origin, target).acquire(nbytes)
            node = self.spec.node_of(target)
            if node == self.node:
                self.accept(target, origin, batch, nbytes)
            else:
                self.runtime.peer(self.spec.nodes[node]).send_batch(self.spec.run, target, origin, batch, nbytes)
        if total and origin in self.homes:
            self.homes[origin].executor.emitted(total, time.time())

    def accept(self, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Take a batch for an instance on this node."""
        home = self.homes.get(target)
        if home is not None:
            home.offer(origin, batch, nbytes)
        else:
            self.sinks[target].offer(origin, batch, nbytes)

    def release(self, origin: ExecutorId, target: ExecutorId, nbytes: int) -> None:
        """Give credit back to an upstream instance; while memory is short it is held back."""
        if self.runtime.memory.tight and target in self.homes:
            self._withheld.append((origin, target, nbytes))
            return
        node = self.spec.node_of(origin)
        if node == self.node:
            self._gate(origin, target).release(nbytes)
        else:
            self.runtime.peer(self.spec.nodes[node]).send_credit(self.spec.run, target, origin, nbytes)

    def release_withheld(self) -> None:
        """Give back the credit that was held back while memory was short."""
        while self._withheld:
            self.release(*self._withheld.popleft())

    def state_bytes(self) -> int:
        """Return the memory of the job's state here, that of remote tasks included."""
        stores = [home.executor.store for home in self.homes.values()]
        return sum(s.state_bytes() for s in (*stores, *(r.part.store for r in list(self.remotes.values()))))

    def out_of_memory(self, account: str) -> StateMemoryExceeded:
        """Return the error that ends the job when memory stays short although no more rows are taken."""
        held = {str(identity): home.executor.store.state_bytes() for identity, home in self.homes.items()}
        listed = ", ".join(f"{name}: {nbytes / 2**20:,.0f} MiB" for name, nbytes in held.items()) or "remote tasks only"
        return StateMemoryExceeded(
            f"worker {self.runtime.address} is short of memory although it takes no more rows: {account}; state of job "
            f"{self.job!r} there: {listed}. {HINT}"
        )

    def _gate(self, origin: ExecutorId, target: ExecutorId) -> CreditGate:
        gate = self._gates.get((origin, target))
        if gate is None:
            with self._lock:
                options = self.spec.options
                gate = CreditGate(options.channel_window, options.queue_time)
                gate = self._gates.setdefault((origin, target), gate)
                if self.ended:
                    gate.abort()
        return gate

    def send_messages(
        self, node: int, executor: ExecutorId, messages: Sequence[ToRemote | ToHome], fence: Fence
    ) -> None:
        """Send messages between an executor's home and its remote tasks, in order."""
        self.runtime.peer(self.spec.nodes[node]).send_messages(self.spec.run, executor, self.node, messages, fence)

    def receive_message(self, executor: ExecutorId, node: int, stamp: Stamp, message: ToRemote | ToHome) -> None:
        """Take a message between an executor's home and its remote tasks; a stale one changes nothing."""
        if isinstance(message, ToHome):
            home = self.homes[executor]
            if home.executor.links.admit(node, stamp):
                home.receive(message)
            return
        remote = self.remotes.get(executor)
        if isinstance(message, StartTask) and (remote is None or stamp.incarnation > remote.part.incarnation):
            if remote is not None:
                remote.close()
            part = RemotePart(executor, self.spaces[executor.component], threading.Lock, stamp.incarnation)
            part.store.reserve = self.runtime.memory.reserve
            component = self.components[executor.component]
            remote = self.remotes[executor] = RemoteDriver(self, part, component, self.spec.node_of(executor))
        if remote is None or not remote.part.admit(stamp):
            self.refused += 1
            return
        remote.receive(message)

    # ends

    def executor_finished(self, identity: ExecutorId) -> None:
        """Say that an executor's input has ended and is processed."""
        self.instance_ended(identity)

    def instance_ended(self, identity: ExecutorId) -> None:
        """Tell the next receivers that an instance has sent its last batch."""
        self.downstream.end(identity)
        self._ended(identity)

    def hear(self, target: ExecutorId, said: Watermark) -> None:
        """Tell an executor or a sink here what one of its inputs says of event time."""
        if target in self.homes:
            self.homes[target].handle(events.InputWatermark(said))
        else:
            self.sinks[target].hear(said)

    def input_ended(self, target: ExecutorId, origin: ExecutorId) -> None:
        """Tell an executor or a sink here that one of its inputs has ended."""
        if target in self.homes:
            self.homes[target].handle(events.InputEnded(origin))
        else:
            self.sinks[target].input_ended(origin)

    def sink_ended(self, identity: ExecutorId) -> None:
        """Say that a sink has written all."""
        self._ended(identity)

    @property
    def complete(self) -> bool:
        """Whether every instance here has ended of itself."""
        return not self._remaining

    def _ended(self, identity: ExecutorId) -> None:
        with self._lock:
            self._remaining.discard(identity)
            last = not self._remaining
        if last:
            self.runtime.job_part_ended(self.job)

    # time

    def balance_due(self) -> None:
        """Balance every executor at home here, unless nothing of the job ever moves."""
        for home in self.homes.values() if self.spec.options.paradigm != STATIC else ():
            home.handle(events.BalanceDue())

    def flush_due(self) -> None:
        """Let remote tasks here send their state home."""
        for remote in list(self.remotes.values()):
            remote.flush_due()

    @property
    def messages_refused(self) -> int:
        """Messages to this node that were stale, or came twice; those to homes are in their own measures."""
        return self.refused + sum(remote.part.refused for remote in list(self.remotes.values()))

    def measures(self) -> list[ExecutorMeasure]:
        """Measures of every executor at home here."""
        now = time.time()
        return [home.executor.measure(now) for home in self.homes.values()]
