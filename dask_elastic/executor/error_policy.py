"""Runs user code: its exceptions fail the job with a clear error, or turn single rows into dead letters."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import pyarrow as pa

from dask_elastic.vocab.errors import ElasticError, UserCodeError

Result = TypeVar("Result")
OnError = Literal["fail", "skip"]


@dataclass(frozen=True)
class DeadLetter:
    """A row for which user code raised.

    Parameters
    ----------
    operator : str
        The operator whose code raised.
    error : str
        The exception as text, with its type.
    rows : pyarrow.RecordBatch
        The row, as the operator received it.
    """

    operator: str
    error: str
    rows: pa.RecordBatch


class ErrorPolicy:
    """Runs user code on ranges of rows.

    Parameters
    ----------
    on_error : {"fail", "skip"}
        Whether an exception fails the job, or its row becomes a dead letter.
    add_dead_letter : callable
        Takes the `DeadLetter` of each skipped row.

    Notes
    -----
    To find the faulty rows under "skip", a range that raised is run again in halves. Errors of dask_elastic itself,
    such as a missing column, always fail the job: no row is at fault.
    """

    def __init__(self, on_error: OnError, add_dead_letter: Callable[[DeadLetter], None]):
        self.on_error = on_error
        self.add_dead_letter = add_dead_letter
        self._batches: dict[str, int] = {}

    def run(self, operator: str, function: Callable[[int, int], list[Result]], rows: pa.RecordBatch) -> list[Result]:
        """Call ``function(start, stop)`` for the whole batch, or for those of its parts that do not raise.

        Parameters
        ----------
        operator : str
            Name of the operator, for error messages.
        function : callable
            Processes the rows from `start` to `stop`.
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
        """
        number = self._batches.get(operator, 0)
        self._batches[operator] = number + 1
        if self.on_error == "fail":
            try:
                return function(0, rows.num_rows)
            except ElasticError:
                raise
            except Exception as error:
                raise _explained(operator, number, error) from error
        return self._halved(operator, function, rows, 0, rows.num_rows)

    def _halved(
        self, operator: str, function: Callable[[int, int], list[Result]], rows: pa.RecordBatch, start: int, stop: int
    ) -> list[Result]:
        try:
            return function(start, stop)
        except ElasticError:
            raise
        except Exception as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                first = self._halved(operator, function, rows, start, middle)
                return first + self._halved(operator, function, rows, middle, stop)
            self.add_dead_letter(DeadLetter(operator, _one_line(error), rows.slice(start, stop - start)))
            return []


def _one_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _explained(operator: str, batch: int, error: Exception) -> UserCodeError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "dask_elastic" not in f.filename.replace("\\", "/").split("/")] or frames
    row = getattr(error, "row", None)
    trace = "".join(traceback.format_list(own)).rstrip()
    return UserCodeError(operator, _one_line(error), batch, row if isinstance(row, int) else None, trace)
