"""Rows of which each is kept or has a reason why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryProgress

from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.prepare.counts import Counts
from dask_elastic.spark.prepare.reading import UNREADABLE, UNREADABLE_LINE
from dask_elastic.vocab.errors import ElasticError, SchemaMismatch

DROPPED = "_dropped"
COPY = "_copy"
READ = "_read"


class PreparationError(ElasticError):
    """Rows could not be prepared as asked; names what was asked for, and what there is."""


@dataclass(frozen=True)
class Prepared:
    """Rows that were judged, of which the good ones are kept.

    Parameters
    ----------
    judged : DataFrame
        All rows; the column ``_dropped`` has the reason, null where a row is kept.
    reasons : tuple of str
        What was looked for, in that order.
    order : tuple of str
        The columns by which kept rows are ordered, the time first.
    """

    judged: DataFrame
    reasons: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def rows(self) -> DataFrame:
        """The rows that are kept, in order. Those of a stream come in the order in which the stream has them."""
        kept = self.judged.where(F.col(DROPPED).isNull()).drop(DROPPED)
        return kept if kept.isStreaming else kept.orderBy(*self.order)

    @property
    def dropped(self) -> DataFrame:
        """The rows that are dropped, with the reason in ``_dropped``."""
        return self.judged.where(F.col(DROPPED).isNotNull())

    def counts(self) -> Counts:
        """Count the rows that were kept, and those that were dropped by reason. Reads them once.

        Raises
        ------
        PreparationError
            If the rows are those of a stream, of which there is no end.
        """
        if self.judged.isStreaming:
            raise PreparationError("a stream has no counts before it ends: take `observed` rows, and add up `counted`.")
        with spark_errors("counting what was dropped"):
            found = {row[DROPPED]: row["count"] for row in self.judged.groupBy(DROPPED).count().collect()}
        return Counts(sum(found.values()), {reason: found.get(reason, 0) for reason in self.reasons})

    def observed(self, name: str) -> DataFrame:
        """Return the rows that are kept, of a stream; Spark counts all of them on their way.

        Parameters
        ----------
        name : str
            Under which the counts of a micro-batch are found in the query's progress; see `counted`.

        Returns
        -------
        DataFrame
            The same rows as `rows`.

        Raises
        ------
        PreparationError
            If the rows are a batch, in which Spark may count a row more than once.
        """
        if not self.judged.isStreaming:
            raise PreparationError("only a stream is observed: a batch has `counts()`.")
        dropped = [F.count_if(F.col(DROPPED) == reason).alias(reason) for reason in self.reasons]
        watched = self.judged.observe(name, F.count(F.lit(1)).alias(READ), *dropped)
        return watched.where(F.col(DROPPED).isNull()).drop(DROPPED)

    def counted(self, progress: Iterable[StreamingQueryProgress], name: str) -> Counts:
        """Add up what was counted in micro-batches.

        Parameters
        ----------
        progress : iterable of StreamingQueryProgress
            Such as ``query.recentProgress``, or what a listener was told.
        name : str
            As given to `observed`.

        Returns
        -------
        Counts
            The sums over all micro-batches that counted under that name.
        """
        found = [batch.observedMetrics[name] for batch in progress if name in batch.observedMetrics]
        dropped = {reason: sum(int(row[reason]) for row in found) for reason in self.reasons}
        return Counts(sum(int(row[READ]) for row in found), dropped)


def judge(
    frame: DataFrame, rules: Mapping[str, Column], order: Collection[str], keep: Collection[str] = ()
) -> Prepared:
    """Look for reasons to drop rows.

    Parameters
    ----------
    frame : DataFrame
        Rows. If they have been judged before, their reasons stay.
    rules : mapping of str to Column
        Reasons, and the condition under which a row is dropped for it. A condition that is null does not hold. The
        first one that holds counts.
    order : collection of str
        The columns to order by.
    keep : collection of str
        Reasons that shall not count.

    Returns
    -------
    Prepared
        The judged rows. Lines that could not be read are dropped before anything else is looked for.

    Raises
    ------
    PreparationError
        If a reason of `keep` is none of the rules.
    """
    unknown = sorted(set(keep) - set(rules))
    if unknown:
        raise PreparationError(f"keep names {unknown}, which are no reasons here; there are {list(rules)}.")
    used = {reason: condition for reason, condition in rules.items() if reason not in keep}
    if UNREADABLE in frame.columns:
        used = {UNREADABLE_LINE: _unreadable(frame), **used}
    found = [F.when(condition, F.lit(reason)) for reason, condition in used.items()]
    before = [F.col(DROPPED)] if DROPPED in frame.columns else []
    reason = F.coalesce(*before, *found, F.lit(None).cast("string"))
    return Prepared(frame.withColumn(DROPPED, reason).drop(UNREADABLE, COPY), tuple(used), tuple(order))


def then(before: Prepared, after: Prepared) -> Prepared:
    """Return what was judged twice, with the reasons of both."""
    return Prepared(after.judged, before.reasons + after.reasons, after.order)


def numbered_copies(frame: DataFrame, columns: Collection[str] | None = None) -> DataFrame:
    """Return the rows with a number from 1 among those equal to it, in all columns or in some, as ``_copy``.

    Rows of a stream are not looked at: each is the first.
    """
    if frame.isStreaming:
        return frame.withColumn(COPY, F.lit(1))
    by = columns or frame.columns
    rest: list[str | Column] = [name for name in frame.columns if name not in by]
    equal = Window.partitionBy(*by).orderBy(*(rest or [F.lit(1)]))
    return frame.withColumn(COPY, F.row_number().over(equal))


def require(frame: DataFrame, what: str, columns: Mapping[str, str | None]) -> None:
    """Check that a frame has columns, and where a type is given, that they have it.

    Raises
    ------
    SchemaMismatch
        Naming what is missing or has another type.
    """
    there = {field.name: field.dataType.simpleString() for field in frame.schema}
    missing = [name for name in columns if name not in there]
    if missing:
        raise SchemaMismatch(f"{what}: columns {missing} are missing; there are {list(there)}.")
    for name, wanted in columns.items():
        if wanted is not None and there[name] != wanted:
            raise SchemaMismatch(f"{what}: column {name!r} has type {there[name]}, and {wanted} is needed: cast it.")


def _unreadable(frame: DataFrame) -> Column:
    """Return whether a line could not be read, looking at all of its columns.

    Spark parses the columns that a query asks for, and finds no fault with others. So that counts and rows agree
    whatever is asked for, the condition names every column, at no cost for lines that are good.
    """
    texts = [F.col(name).cast("string") for name in frame.columns if name != UNREADABLE]
    return F.col(UNREADABLE).isNotNull() & (F.length(F.concat_ws("", *texts)) >= 0)
