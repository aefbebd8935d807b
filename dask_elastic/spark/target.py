"""The target of a handoff: cluster, job and source, as text options that Spark passes to its Python workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask.config
from distributed.security import Security

from dask_elastic.vocab.errors import HandoffError

FORMAT = "dask_elastic"
"""The name of the Spark format."""

TLS_OPTIONS = ("tls_ca_file", "tls_client_cert", "tls_client_key")
OPTIONS = ("job", "source", "address", "query", "epoch", "end", "run", "checkpoint", *TLS_OPTIONS)
SPARKS_OWN = ("path", "checkpointlocation")


@dataclass(frozen=True)
class Target:
    """The job and source to which Spark writes.

    Parameters
    ----------
    address : str
        Address of the Dask scheduler.
    job : str
        Name of the job.
    source : str or None
        Name of its source; None if only one source takes epochs.
    query : str or None
        Name of the writing query, in place of Spark's id of a streaming query.
    epoch : int or None
        The epoch that a batch writes, for programs that repeat batches.
    end : bool or None
        Whether the source ends: for a batch, after its commit (None: no); for a streaming query, when the query ends
        (None: yes).
    run : str or None
        The run of the job, which restarts keep. A query that wrote to an earlier run does not end the source of a
        later one.
    checkpoint : str or None
        The checkpoint of the streaming query; `handoff` adds the name of the query, if it has one.
    tls : tuple of (str, str)
        Files with the credentials, by the names of `distributed.Security`.
    """

    address: str
    job: str
    source: str | None = None
    query: str | None = None
    epoch: int | None = None
    end: bool | None = None
    run: str | None = None
    checkpoint: str | None = None
    tls: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Target:
        """Parse the options of a writer.

        Parameters
        ----------
        options : mapping of str to str
            ``job``, and optionally ``source``, ``address``, ``query``, ``epoch``, ``end``, ``run``,
            ``checkpoint``, ``tls_ca_file``, ``tls_client_cert``, ``tls_client_key``. The default of ``address`` is
            ``scheduler-address`` in Dask's configuration.

        Returns
        -------
        Target
            The target.

        Raises
        ------
        HandoffError
            If an option is missing, unknown or invalid.

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
                f'format {FORMAT!r} needs the name of the job: .option("job", name), or .options(**into(job)).'
            )
        address = given.get("address") or dask.config.get("scheduler-address", None)
        if not address:
            raise HandoffError(
                f"format {FORMAT!r} needs the address of the Dask scheduler: set it with .options(**into(job)), with "
                '.option("address", "tcp://host:8786"), or with the environment variable DASK_SCHEDULER_ADDRESS.'
            )
        tls = tuple((name, given[name]) for name in TLS_OPTIONS if given.get(name))
        return cls(
            address,
            job,
            source=given.get("source"),
            query=given.get("query"),
            epoch=_number(given, "epoch", "the number of the micro-batch"),
            end=_flag(given),
            run=given.get("run"),
            checkpoint=given.get("checkpoint", given.get("checkpointlocation")),
            tls=tls,
        )

    def connection_args(self) -> dict[str, Any]:
        """Return Dask's connection arguments, with the credentials loaded."""
        if not self.address.startswith("tls"):
            return dict(Security().get_connection_args("client"))
        security = Security(**dict(self.tls), require_encryption=True)
        return dict(security.get_connection_args("client"))


def checkpoint_key(location: str, query: str | None) -> str:
    """Return the text that identifies a checkpoint, and the name that the program gave the query.

    Parameters
    ----------
    location : str
        The path or URI of the checkpoint, as the user or Spark writes it; empty if unknown.
    query : str or None
        The name, which tells apart several handoffs of one query.

    Returns
    -------
    str
        Equal for the same checkpoint and name.

    Examples
    --------
    >>> checkpoint_key("file:///data/checkpoint/", None), checkpoint_key("/data/checkpoint", "late")
    ('/data/checkpoint', '/data/checkpoint#late')
    """
    path = re.sub("^file:/+", "/", location).rstrip("/")
    return path if query is None else f"{path}#{query}"


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
