"""The newest epoch of each streaming query in a ledger: detects skipped epochs and repeated inputs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dask_elastic.vocab.epoch import EpochKind, EpochOrigin
from dask_elastic.vocab.errors import SourceReset

ACCEPT = "sources.Spark(schema, on_reset='accept')"


@dataclass(frozen=True)
class QueryMarks:
    """How far the streaming queries of a source have come, as a checkpoint keeps it.

    Parameters
    ----------
    newest : dict of str to int
        The newest epoch of each query.
    queries : dict of str to str
        The query that has written with each checkpoint of Spark.
    """

    newest: dict[str, int] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)


class QueryPositions:
    """How far each streaming query has come at one source.

    Spark counts the micro-batches of a query from 0 in its checkpoint, and never repeats one that it has logged there.
    So a first epoch above 0 means that its predecessors went elsewhere, and another query with the same checkpoint
    means that the checkpoint was deleted and the same input comes again.

    Parameters
    ----------
    place : str
        The job and the source, for messages.
    accept : bool
        Whether to accept skipped epochs and repeated inputs.

    Examples
    --------
    >>> positions = QueryPositions("job 'flights', source 'rows'")
    >>> origin = EpochOrigin(EpochKind.STREAM, "/data/checkpoint")
    >>> positions.check("q", 0, origin)
    >>> positions.advance("q", 0, origin)
    >>> positions.check("q", 2, origin)
    Traceback (most recent call last):
    dask_elastic.vocab.errors.SourceReset: job 'flights', source 'rows': query q sends epoch 2, but epoch 1 is ...
    """

    def __init__(self, place: str = "this source", accept: bool = False):
        self.place = place
        self.accept = accept
        self._newest: dict[str, int] = {}
        self._queries: dict[str, str] = {}
        # A checkpoint may forget thousands of queries at once: none must look through the checkpoints of all.
        self._checkpoints: dict[str, set[str]] = {}

    def check(self, query: str, epoch: int, origin: EpochOrigin) -> None:
        """Check that an epoch that is not committed continues its query.

        Parameters
        ----------
        query : str
            The query.
        epoch : int
            The micro-batch.
        origin : EpochOrigin
            Who numbers it; only the micro-batches of streaming queries are checked.

        Raises
        ------
        SourceReset
            If epochs before it are missing, or the query repeats the input of another one.
        """
        if self.accept or not origin.kind.streaming:
            return
        newest = self._newest.get(query)
        expected = 0 if newest is None else newest + 1
        if epoch > expected and (newest is None or origin.kind is EpochKind.STREAM):
            raise SourceReset(self._gap(query, epoch, expected, origin))
        earlier = self._queries.get(origin.checkpoint, query)
        if newest is None and earlier != query:
            raise SourceReset(self._repetition(query, epoch, earlier, origin))

    def advance(self, query: str, epoch: int, origin: EpochOrigin) -> None:
        """Note a committed epoch."""
        if origin.kind.streaming:
            self._newest[query] = max(epoch, self._newest.get(query, epoch))
            self._note(query, origin.checkpoint)

    def _note(self, query: str, checkpoint: str) -> None:
        self._queries[checkpoint] = query
        self._checkpoints.setdefault(query, set()).add(checkpoint)

    def forget(self, query: str) -> None:
        """Forget a query: it may no longer continue, and its input may come again."""
        self._newest.pop(query, None)
        for checkpoint in self._checkpoints.pop(query, ()):
            # Another query may have written with it since.
            if self._queries.get(checkpoint) == query:
                del self._queries[checkpoint]

    def marks(self) -> QueryMarks:
        """Return how far the queries have come."""
        return QueryMarks(dict(self._newest), dict(self._queries))

    def restore(self, marks: QueryMarks) -> None:
        """Continue from what `marks` has returned before."""
        self._newest = dict(marks.newest)
        for checkpoint, query in marks.queries.items():
            self._note(query, checkpoint)

    def _gap(self, query: str, epoch: int, expected: int, origin: EpochOrigin) -> str:
        missing = f"epoch {expected} is" if epoch == expected + 1 else f"epochs {expected} to {epoch - 1} are"
        skipped = ""
        if origin.kind is EpochKind.FOREACH_BATCH:
            skipped = " The same applies if the function of foreachBatch skips micro-batches on purpose."
        return (
            f"{self.place}: query {query} sends epoch {epoch}, but {missing} not in this job, and Spark does not send "
            "them again: probably the job was submitted again, and the query continues from its old checkpoint. Start "
            f"the query with a new checkpoint to send all rows, or submit the job with {ACCEPT} to process only the "
            f"rows from here on.{skipped}"
        )

    def _repetition(self, query: str, epoch: int, earlier: str, origin: EpochOrigin) -> str:
        before = f"query {earlier} has committed epochs up to {self._newest[earlier]}"
        if origin.checkpoint:
            what = (
                f"{before} with the same checkpoint, {origin.checkpoint}: it was deleted since, so Spark reads the "
                "input again, whose rows would be in the job twice. Restore the checkpoint, or submit the job again"
            )
        else:
            what = (
                f"{before}, and the checkpoints of both are unknown: if it is the same query without its checkpoint, "
                "its rows would be in the job twice. Give each query .option('checkpointLocation', ...)"
            )
        return f"{self.place}: query {query} sends epoch {epoch}, but {what}; {ACCEPT} accepts the rows."
