"""The storage of a simulated job: requests that take time, fail, hang, or lose their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Generic, Literal, TypeVar

from dask_elastic.checkpoint.takeover import StorageSteps
from dask_elastic.simulator.checkpoints import ExecutorCut
from dask_elastic.simulator.durability.memory_folder import MemoryFolder
from dask_elastic.simulator.durability.sink_target import SinkTarget
from dask_elastic.simulator.fiber import Condition, FiberSteps
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.vocab.errors import CheckpointError

T = TypeVar("T")
R = TypeVar("R")
Moment = Literal["before", "after"]
"""Before the effect of a request, or after it and before its answer."""

MOST_HANGING_STEPS = 800
"""A request that hangs takes up to this many steps of the job."""


class StorageFailure(CheckpointError):
    """A request failed, or its answer was lost."""


class _Request(Generic[T]):
    def __init__(self, effect: Callable[[], T]):
        self.effect = effect
        self.answered = False
        self.error: CheckpointError | None = None
        self.result: T | None = None


class _Hanging:
    ended = False

    def end(self) -> None:
        self.ended = True

    def has_ended(self) -> bool:
        return self.ended


class SimulatedStorage:
    """The folder of the checkpoints, the contents of state files, and the target of the sinks.

    A request goes on when the node that made it is lost.

    Parameters
    ----------
    schedule : Schedule
        Runs the requests.
    target : SinkTarget
        What the sinks write to.
    faults : float
        The share of requests that fail without effect, of those that hang, and of those whose answer is lost.
    watch : callable
        Called with what is requested and the moment, for each request.
    after : callable
        Calls something after some steps of the job.

    Attributes
    ----------
    folder : MemoryFolder
        The folder.
    states : dict of str to ExecutorCut
        The contents of the state files, by path.
    happened : Counter of str
        How many requests failed, hung, or lost their answer.
    """

    def __init__(
        self,
        schedule: Schedule,
        target: SinkTarget,
        faults: float,
        watch: Callable[[str, Moment], None],
        after: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self.folder = MemoryFolder()
        self.states: dict[str, ExecutorCut] = {}
        self.target = target
        self.happened: Counter[str] = Counter()
        self._schedule = schedule
        self._faults = faults
        self._watch = watch
        self._after = after

    def request(self, what: str, effect: Callable[[], T]) -> Generator[Condition | None, None, T]:
        """Request something, and wait for the answer.

        Raises
        ------
        CheckpointError
            If the request failed, or seems to have failed.
        """
        request = _Request(effect)
        self._schedule.spawn(what, self._serve(what, request))
        yield lambda: request.answered
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]

    def requests(self, steps: StorageSteps[R]) -> Generator[Condition | None, None, R]:
        """Request one thing after the other, and return the result.

        Raises
        ------
        CheckpointError
            If a request failed, or the steps raise it.
        """
        answer: object = None
        while True:
            try:
                act = steps.send(answer)
            except StopIteration as ended:
                result: R = ended.value
                return result
            name = getattr(getattr(act, "func", act), "__name__", "request")
            answer = yield from self.request(name, act)

    def _serve(self, what: str, request: _Request[T]) -> FiberSteps:
        yield None
        self._watch(what, "before")
        fate = self._schedule.draw() / self._faults if self._faults else 3.0
        if fate < 1.0:
            self.happened["failed"] += 1
            request.error = StorageFailure(f"{what} failed")
        else:
            if fate < 2.0:
                self.happened["hung"] += 1
                hung = _Hanging()
                self._after(int(MOST_HANGING_STEPS * self._schedule.draw()), hung.end)
                yield hung.has_ended
            try:
                request.result = request.effect()
            except CheckpointError as error:
                request.error = error
            self._watch(what, "after")
            yield None
            if 2.0 <= fate < 3.0:
                self.happened["answers lost"] += 1
                request.error = StorageFailure(f"the answer to {what} was lost")
        request.answered = True
