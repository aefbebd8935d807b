"""Where a hand-off goes: cluster, job and source, as the text options that Spark passes to its Python workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask.config
from distributed.security import Security

from dask_elastic.vocab.errors import HandoffError

FORMAT = "dask_elastic"
"""What Spark calls the format."""

TLS_OPTIONS = ("tls_ca_file", "tls_client_cert", "tls_client_key")
OPTIONS = ("job", "source", "address", "query", "epoch", "end", "run", *TLS_OPTIONS)
SPARKS_OWN = ("path", "checkpointlocation")


@dataclass(frozen=True)
class Target:
    """Where rows go.

    Parameters
    ----------
    address : str
        Of the Dask scheduler.
    job : str
        Name of the job.
    source : str or None
        Name of its source; None for the only one that takes epochs.
    query : str or None
        What to call the writer, instead of the id that Spark gives a streaming query.
    epoch : int or None
        Which epoch a batch writes, for those who repeat them.
    end : bool or None
        Whether the source ends: for a batch, with its commit, and None means it does not; for a streaming query, with
        the query, and None means it does.
    generation : int or None
        The generation of the job, the option ``run``; a query that wrote to an earlier generation does not end the
        source of a later one.
    tls : tuple of (str, str)
        Files with the credentials, by the names of `distributed.Security`.
    """

    address: str
    job: str
    source: str | None = None
    query: str | None = None
    epoch: int | None = None
    end: bool | None = None
    generation: int | None = None
    tls: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Target:
        """Read the options of a writer.

        Parameters
        ----------
        options : mapping of str to str
            ``job``, and perhaps ``source``, ``address``, ``query``, ``epoch``, ``end``, ``tls_ca_file``,
            ``tls_client_cert``, ``tls_client_key``. What is not said of the cluster comes from Dask's configuration.

        Raises
        ------
        HandoffError
            If an option is missing, unknown or makes no sense.

        Examples
        --------
        >>> Target.from_options({"job": "flights", "address": "tcp://host:8786", "epoch": "3"}).epoch
        3
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(given.keys() - {*OPTIONS, *SPARKS_OWN})
        if unknown:
            raise HandoffError(f"format {FORMAT!r} has no option {unknown[0]!r}: choose from {', '.join(OPTIONS)}.")
        job = given.get("job") or given.get("path")
        if not job:
            raise HandoffError(
                f'format {FORMAT!r} needs to know the job: .option("job", name), or .options(**into(job)).'
            )
        address = given.get("address") or dask.config.get("scheduler-address", None)
        if not address:
            raise HandoffError(
                f"format {FORMAT!r} does not know the Dask scheduler: .options(**into(job)) says it, as do "
                '.option("address", "tcp://host:8786") and the environment variable DASK_SCHEDULER_ADDRESS.'
            )
        tls = tuple((name, given[name]) for name in TLS_OPTIONS if given.get(name))
        return cls(
            address,
            job,
            source=given.get("source"),
            query=given.get("query"),
            epoch=_number(given, "epoch", "the number of the micro-batch"),
            end=_flag(given),
            generation=_number(given, "run", "the generation of the job, as `into` returns it"),
            tls=tls,
        )

    def connection_args(self) -> dict[str, Any]:
        """Return how to dial: Dask's arguments of a connection, with the credentials read."""
        if not self.address.startswith("tls"):
            return dict(Security().get_connection_args("client"))
        security = Security(**dict(self.tls), require_encryption=True)
        return dict(security.get_connection_args("client"))


def _number(given: Mapping[str, str], option: str, what: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError as error:
        raise HandoffError(f"option {option} is {text!r}; give {what}.") from error
    if number < 0:
        raise HandoffError(f"option {option} is {text!r}; give {what}, 0 or more.")
    return number


def _flag(given: Mapping[str, str]) -> bool | None:
    if "end" not in given:
        return None
    text = given["end"].lower()
    if text not in ("true", "false"):
        raise HandoffError(f'option end is {given["end"]!r}; give "true" or "false".')
    return text == "true"
