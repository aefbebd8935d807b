"""Rows that are kept, or dropped with a reason."""

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
    """Rows could not be prepared as requested; names the invalid request and the valid choices."""


@dataclass(frozen=True)
class Prepared:
    """Rows with the reason for which each is dropped, if any.

    Parameters
    ----------
    judged : DataFrame
        All rows. The column ``_dropped`` holds the reason; null if the row is kept.
    reasons : tuple of str
        The reasons, in the order in which they are tested.
    order : tuple of str
        The columns by which kept rows are sorted, the time first.

    Examples
    --------
    Look at what was dropped from a batch::

        prepared = flights(flown)
        print(prepared.counts())
        prepared.dropped.select("_dropped", "tailnum").show()

    Count the rows of a stream while a query processes them::

        query = flights(arriving).observed("flights").writeStream.format("memory").queryName("flown").start()
        query.processAllAvailable()
        print(prepared.counted(query.recentProgress, "flights"))
    """

    judged: DataFrame
    reasons: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def rows(self) -> DataFrame:
        """The kept rows, sorted; the rows of a stream are not sorted."""
        kept = self.judged.where(F.col(DROPPED).isNull()).drop(DROPPED)
        return kept if kept.isStreaming else kept.orderBy(*self.order)

    @property
    def dropped(self) -> DataFrame:
        """The dropped rows, with the reason in ``_dropped``."""
        return self.judged.where(F.col(DROPPED).isNotNull())

    def counts(self) -> Counts:
        """Count the kept rows, and the dropped rows by reason, in one pass.

        Returns
        -------
        Counts
            The numbers of rows.

        Raises
        ------
        PreparationError
            If the rows are a stream, which has no end.
        SparkFailed
            If Spark could not read the rows.
        """
        if self.judged.isStreaming:
            raise PreparationError(
                "`counts` needs a batch: for a stream, write the `observed` rows and call `counted`."
            )
        with spark_errors("counting dropped rows"):
            found = {row[DROPPED]: row["count"] for row in self.judged.groupBy(DROPPED).count().collect()}
        return Counts(sum(found.values()), {reason: found.get(reason, 0) for reason in self.reasons})

    def observed(self, name: str) -> DataFrame:
        """Return the kept rows of a stream; Spark counts kept and dropped rows while it processes them.

        Parameters
        ----------
        name : str
            Name of the counts of each micro-batch in the query's progress; see `counted`.

        Returns
        -------
        DataFrame
            The same rows as `rows`.

        Raises
        ------
        PreparationError
            If the rows are a batch, for which Spark may count a row more than once.
        """
        if not self.judged.isStreaming:
            raise PreparationError("`observed` needs a stream: for a batch, call `counts`.")
        dropped = [F.count_if(F.col(DROPPED) == reason).alias(reason) for reason in self.reasons]
        observed = self.judged.observe(name, F.count(F.lit(1)).alias(READ), *dropped)
        return observed.where(F.col(DROPPED).isNull()).drop(DROPPED)

    def counted(self, progress: Iterable[StreamingQueryProgress], name: str) -> Counts:
        """Sum the counts of micro-batches.

        Parameters
        ----------
        progress : iterable of StreamingQueryProgress
            Such as ``query.recentProgress``, or the progress of a listener's events.
        name : str
            The name given to `observed`.

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
    """Mark the rows to drop, with their reasons.

    Parameters
    ----------
    frame : DataFrame
        Rows. Reasons of an earlier `judge` take precedence.
    rules : mapping of str to Column
        For each reason, the condition under which a row is dropped; null counts as false. The first condition that
        holds gives the reason.
    order : collection of str
        The columns to sort by.
    keep : collection of str
        Reasons for which rows are not dropped.

    Returns
    -------
    Prepared
        The marked rows. "unreadable line" is tested before the given reasons, if `read` parsed text.

    Raises
    ------
    PreparationError
        If `keep` names an unknown reason.

    Examples
    --------
    Drop orders without a customer, and sort the rest by time::

        prepared = judge(orders, {"no customer": orders.customer.isNull()}, order=["event_time"])
    """
    unknown = sorted(set(keep) - set(rules))
    if unknown:
        raise PreparationError(f"keep names unknown reasons {unknown}; the reasons are {list(rules)}.")
    used = {reason: condition for reason, condition in rules.items() if reason not in keep}
    if UNREADABLE in frame.columns:
        used = {UNREADABLE_LINE: _unreadable(frame), **used}
    found = [F.when(condition, F.lit(reason)) for reason, condition in used.items()]
    before = [F.col(DROPPED)] if DROPPED in frame.columns else []
    reason = F.coalesce(*before, *found, F.lit(None).cast("string"))
    return Prepared(frame.withColumn(DROPPED, reason).drop(UNREADABLE, COPY), tuple(used), tuple(order))


def then(before: Prepared, after: Prepared) -> Prepared:
    """Combine two judgements of the same rows: the rows of the second, with the reasons of both."""
    return Prepared(after.judged, before.reasons + after.reasons, after.order)


def numbered_copies(frame: DataFrame, columns: Collection[str] | None = None) -> DataFrame:
    """Add the column ``_copy``, which numbers the rows that are equal in all or some columns, from 1.

    The rows of a stream are not compared: each gets the number 1.
    """
    if frame.isStreaming:
        return frame.withColumn(COPY, F.lit(1))
    by = columns or frame.columns
    rest: list[str | Column] = [name for name in frame.columns if name not in by]
    equal = Window.partitionBy(*by).orderBy(*(rest or [F.lit(1)]))
    return frame.withColumn(COPY, F.row_number().over(equal))


def require(frame: DataFrame, what: str, columns: Mapping[str, str | None]) -> None:
    """Check that a frame has columns, with the given types if any.

    Raises
    ------
    SchemaMismatch
        If a column is missing or has another type; names it.
    """
    there = {field.name: field.dataType.simpleString() for field in frame.schema}
    missing = [name for name in columns if name not in there]
    if missing:
        raise SchemaMismatch(f"{what}: columns {missing} are missing; the columns are {list(there)}.")
    for name, wanted in columns.items():
        if wanted is not None and there[name] != wanted:
            raise SchemaMismatch(f"{what}: column {name!r} has type {there[name]} instead of {wanted}: cast it.")


def _unreadable(frame: DataFrame) -> Column:
    """Return the condition that a line could not be parsed in any of its columns.

    Spark parses only the columns that a query uses, and detects errors only in these. The condition uses every column,
    so that counts and rows agree whatever a query selects; it costs nothing for valid lines.
    """
    texts = [F.col(name).cast("string") for name in frame.columns if name != UNREADABLE]
    return F.col(UNREADABLE).isNotNull() & (F.length(F.concat_ws("", *texts)) >= 0)
