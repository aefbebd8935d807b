"""Steps of a driver: generators that yield each effect, so that threads and the simulator can run the same code.

A driver is written once, as generators. Wherever it needs an effect (send a message, wait for a bell, deliver outputs),
it yields an *act*, a callable without arguments, and is resumed with the act's result. A thread performs each act at
once (`run`). The simulator lets other fibers run before each act; an act may return a generator, which the simulator
runs as part of the fiber, so that the act can wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Act: TypeAlias = Callable[[], Any]
"""One effect of a driver; may block in a thread, and may return steps of a fiber in the simulator."""

Steps: TypeAlias = Generator[Act, Any, T]
"""What a driver does: it yields acts, gets their results, and returns a value."""


def nothing() -> Steps[None]:
    """Return steps without any act."""
    yield from ()


def run(steps: Steps[T]) -> T:
    """Run steps to their end in this thread.

    Parameters
    ----------
    steps : generator
        What to run. When an act raises, the generator is closed first, so that its ``finally`` clauses run.

    Returns
    -------
    object
        What the generator returned.

    Examples
    --------
    >>> def doubled():
    ...     number = yield lambda: 21
    ...     return 2 * number
    >>> run(doubled())
    42
    """
    try:
        act = next(steps)
        while True:
            act = steps.send(act())
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()
