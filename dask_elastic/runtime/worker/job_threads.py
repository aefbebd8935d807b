"""The threads of a job's part on one node: started, failed and joined together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dask_elastic.executor.error_policy import with_trace
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.transport.last_sender import LastSender
from dask_elastic.runtime.transport.lease_gate import LeaseGate
from dask_elastic.runtime.transport.run_thread import RunThread
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.runtime.worker.user_calls import UserCalls
from dask_elastic.vocab.errors import JobFailed


class JobThreads:
    """Runs the threads of one job on one node.

    Parameters
    ----------
    job : str
        Name of the job, part of the threads' names.
    fail : callable
        Called with the error of a thread that raised; it ends the job.
    leased : bool
        Whether the job needs the coordinator's lease to emit.

    Attributes
    ----------
    lease : LeaseGate
        Where threads wait before they emit, unless the lease holds.
    ended : bool
        Whether the job has ended here: loops of threads check it whenever they are woken.
    error : BaseException or None
        The error that the job has ended with here, if any; it is there as soon as the job has ended.
    last_sender : LastSender
        What its sources leave to the last of those that send at a tick.
    runs : RunThread
        Runs idle tasks in place of threads that must not wait.
    user_calls : UserCalls
        The calls of user code in which its threads are.
    """

    def __init__(self, job: str, fail: Callable[[BaseException], None], leased: bool = False):
        self.job = job
        self.ended = False
        self.error: BaseException | None = None
        self.lease = LeaseGate(leased)
        self.last_sender = LastSender()
        self.user_calls = UserCalls()
        self.runs = RunThread(self, may_help=TURNS.is_free)
        self._fail = fail
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs something, and fails the job if that raises an error other than `Aborted`."""

        def guarded() -> None:
            try:
                run()
            except Aborted:
                return
            except Exception as error:  # reported to the client as the job's error
                self._fail(error)
            except BaseException as error:  # reported as well; a KeyboardInterrupt has no text of its own
                self._fail(JobFailed(with_trace("user code has ended its thread", error)))

        return guarded

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Run something on a thread of its own; an error in it fails the job, except `Aborted`."""
        thread = threading.Thread(target=self.guarded(run), name=f"elastic-{self.job}-{name}", daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive() or t.ident is None]
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the process has too many threads, or too little memory
            with self._lock:
                self._threads.remove(thread)
            raise

    def end(self, error: BaseException | None = None) -> bool:
        """Note that the job has ended, perhaps with an error; returns False if it had ended before."""
        with self._lock:
            first = not self.ended
            if first:
                # In this order: who sees that the job has ended sees its error as well.
                self.error = error
                self.ended = True
        self.lease.end()
        self.runs.wake()
        return first

    def leave_run(self, run: Callable[[], None]) -> bool:
        """Leave a run to the thread that runs idle tasks; returns False if that one is blocked."""
        return self.runs.leave(self.guarded(run))

    def overdue(self) -> list[Callable[[], None]]:
        """Return what was left to threads that are blocked; called from time to time."""
        return [*self.last_sender.overdue(), *self.runs.overdue()]

    def join(self, timeout: float) -> list[str]:
        """Wait up to `timeout` seconds for the threads to end; returns the names of those that have not."""
        deadline = time.monotonic() + timeout
        # A thread that has not started yet ends by itself, because the job has ended.
        threads = [thread for thread in self._threads if thread.ident is not None]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        names = [thread.name for thread in threads if thread.is_alive()]
        # The thread that carries out runs may be one that reads a connection.
        if not names and not self.runs.join(max(0.0, deadline - time.monotonic())):
            names.append("elastic-reader")
        return names
