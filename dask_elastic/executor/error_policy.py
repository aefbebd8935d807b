"""Runs user code: its exceptions fail the job with a clear error, or turn single rows into dead letters."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias, TypeVar

import pyarrow as pa

from dask_elastic.executor.row_search import RowSearch, is_failure_of_row
from dask_elastic.vocab.errors import (
    ElasticError,
    NumericOverflow,
    SourceError,
    StateError,
    StateValueError,
    UserCodeError,
)

Result = TypeVar("Result")
OnError = Literal["fail", "skip"]

KEY = "_dask_elastic_key"
"""The attribute of an exception with the key, as text, with which the code was called that raised it."""

_PACKAGE = Path(__file__).parents[1]

Errors: TypeAlias = dict[int, str]
"""The error of each failing row, as text, by the row's position in a range."""

RunRange: TypeAlias = Callable[[int, int, Errors | None], list[Result]]
"""``run(start, stop, errors)`` processes a range of rows; it has no effect if it raises.

Logic that can tell which of its rows raise processes all others, and enters them in `errors` unless this is None.
"""


@dataclass(frozen=True)
class FailedRows:
    """Rows of one batch on which user code raised.

    Parameters
    ----------
    operator : str
        The operator whose code raised.
    errors : list of str
        The exception of each row as text, with its type.
    rows : pyarrow.RecordBatch
        The rows, as the operator received them.
    """

    operator: str
    errors: list[str]
    rows: pa.RecordBatch


class ErrorPolicy:
    """Runs user code on ranges of rows; belongs to one thread.

    Parameters
    ----------
    on_error : {"fail", "skip"}
        Whether an exception fails the job, or its row becomes a dead letter.
    add_dead_letters : callable
        Takes the `FailedRows` of each batch with failing rows.

    Notes
    -----
    Under "skip", failing rows that the logic has not found itself are found by a `RowSearch`. Errors of dask_elastic
    itself, such as a missing column, always fail the job: no row is at fault. A value that does not fit the declared
    state is an error of user code.
    """

    def __init__(self, on_error: OnError, add_dead_letters: Callable[[FailedRows], None]):
        self.on_error = on_error
        self.add_dead_letters = add_dead_letters
        self._batches: dict[str, int] = {}
        self._searches: dict[str, RowSearch] = {}

    def run(self, operator: str, function: RunRange[Result], rows: pa.RecordBatch) -> list[Result]:
        """Process the whole batch, or those of its rows that do not raise.

        Parameters
        ----------
        operator : str
            Name of the operator, for error messages.
        function : callable
            Processes a range of the rows; see `RunRange`.
        rows : pyarrow.RecordBatch
            The rows, as the operator receives them.

        Returns
        -------
        list
            The results of `function`, in the order of the rows.

        Raises
        ------
        UserCodeError
            If user code raises and `on_error` is "fail".
        StateError
            If user code uses its state in a way that is not declared; names the operator.
        NumericOverflow
            If an aggregate exceeds its type; names the operator.
        """
        number = self._batches.get(operator, 0)
        self._batches[operator] = number + 1
        try:
            if self.on_error == "fail":
                try:
                    return function(0, rows.num_rows, None)
                except Exception as error:
                    if is_failure_of_row(error):
                        raise _explained(operator, number, error) from error
                    raise
            return self._skipping(operator, function, rows)
        except StateError as error:
            raise StateError(f"operator {operator!r}: {error}") from error
        except NumericOverflow as error:
            raise NumericOverflow(f"operator {operator!r}: {error}") from error
        except (Exception, KeyboardInterrupt):  # `testing.run` is in the thread that Ctrl-C interrupts
            raise
        except BaseException as error:  # sys.exit(), or a coroutine that was cancelled, is no failure of a row
            raise _explained(operator, number, error) from error

    def _skipping(self, operator: str, function: RunRange[Result], rows: pa.RecordBatch) -> list[Result]:
        results: list[Result] = []
        failed: Errors = {}

        def process(start: int, stop: int) -> None:
            found: Errors = {}
            results.extend(function(start, stop, found))
            failed.update((start + row, error) for row, error in found.items())

        def skip(row: int, error: Exception) -> None:
            failed[row] = error_text(error)

        search = self._searches.setdefault(operator, RowSearch())
        search.run(process, skip, rows.num_rows)
        if failed:
            positions = sorted(failed)
            letters = FailedRows(operator, [failed[row] for row in positions], rows.take(pa.array(positions)))
            self.add_dead_letters(letters)
        return results


def error_text(error: BaseException) -> str:
    """Return an exception as text, with its type.

    Parameters
    ----------
    error : BaseException
        The exception.

    Returns
    -------
    str
        One line, unless the message has more.

    Examples
    --------
    >>> error_text(ValueError("a delay of -5"))
    'ValueError: a delay of -5'
    """
    if isinstance(error, ElasticError):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception_only(error)).strip()


def with_trace(what: str, error: BaseException) -> str:
    """Return a sentence about an exception, and below it the frames outside the engine that raised it.

    Parameters
    ----------
    what : str
        What has failed, as ``"sink 'out' failed"``.
    error : BaseException
        The exception.

    Examples
    --------
    >>> with_trace("sink 'out' failed", OSError("no space left"))
    "sink 'out' failed: OSError: no space left"
    """
    trace = _formatted(_frames_of_others(error))
    return f"{what}: {error_text(error)}" + (f"\n{trace}" if trace else "")


def raise_source_error(name: str, error: Exception) -> NoReturn:
    """Raise the error of a source that could not be read, with its name.

    Parameters
    ----------
    name : str
        The operator.
    error : Exception
        What reading has raised.

    Raises
    ------
    SourceError
        Always, except for errors of dask_elastic that are of something else, which are raised as they are.

    Examples
    --------
    >>> try:
    ...     raise_source_error("rows", OSError("no route"))
    ... except SourceError as error:
    ...     print(error)
    source 'rows' could not be read: OSError: no route
    """
    if isinstance(error, ElasticError):
        if not isinstance(error, SourceError) or str(error).startswith(f"source {name!r}"):
            raise error
        raise SourceError(f"source {name!r}: {error}") from error
    raise SourceError(with_trace(f"source {name!r} could not be read", error)) from error


def _explained(operator: str, batch: int, error: BaseException) -> UserCodeError:
    own = _frames_of_others(error)
    # Those explain themselves: our checks raise them.
    if not own and not isinstance(error, (TypeError, ValueError, StateValueError)):
        own = [*traceback.extract_tb(error.__traceback__)]
    row = getattr(error, "row", None)
    place = batch, row if isinstance(row, int) else None
    key, of_rows = getattr(error, KEY, None), isinstance(error, Exception)
    return UserCodeError(operator, error_text(error), *place, _formatted(own), key, of_rows)


def _frames_of_others(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not Path(frame.filename).is_relative_to(_PACKAGE)]


def _formatted(frames: list[traceback.FrameSummary]) -> str:
    return "".join(traceback.format_list(frames)).rstrip()
