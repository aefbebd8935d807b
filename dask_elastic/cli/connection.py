"""The scheduler that a command connects to: by its options, else by the environment or Dask's configuration."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import dask.config
from distributed import Client
from distributed.comm import connect
from distributed.security import Security

CONNECT_SECONDS = 10.0
"""Timeout for connecting to a scheduler; short, because a user is waiting."""

NO_ADDRESS = (
    "no address of a scheduler: give --scheduler ADDRESS, or set DASK_SCHEDULER_ADDRESS, "
    "or scheduler-address in Dask's configuration"
)
PEM_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)


@dataclass(frozen=True)
class Connection:
    """The connection options of a command.

    Parameters
    ----------
    given : str or None
        The address given by ``--scheduler``.
    ca_file, cert, key : str or None
        Files for TLS; without them, Dask's configuration decides.

    Raises
    ------
    click.UsageError
        If only one of `cert` and `key` is given.
    """

    given: str | None = None
    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise click.UsageError("--tls-cert and --tls-key belong together: give both or none")

    @property
    def has_tls_options(self) -> bool:
        """Whether files for TLS were given."""
        return (self.ca_file, self.cert) != (None, None)

    def known_address(self) -> str | None:
        """Return the address given by option, environment or configuration; None if there is none."""
        # Dask reads DASK_SCHEDULER_ADDRESS into its configuration.
        return self.given or dask.config.get("scheduler-address", None)

    def address(self) -> str:
        """Return the address of the scheduler.

        Raises
        ------
        click.UsageError
            If no address is given or configured.
        """
        address = self.known_address()
        if not address:
            raise click.UsageError(NO_ADDRESS)
        return address

    def security(self) -> Security | None:
        """Return the security of the TLS options; None to use Dask's configuration."""
        if not self.has_tls_options:
            return None
        files = {"tls_ca_file": self.ca_file, "tls_client_cert": self.cert, "tls_client_key": self.key}
        return Security(require_encryption=True, **{name: file for name, file in files.items() if file is not None})

    @contextmanager
    def client(self, make: Callable[..., Client] = Client, seconds: float | None = None) -> Iterator[Client]:
        """Connect a client, and close it after the block.

        Parameters
        ----------
        make : callable
            The class of the client.
        seconds : float, optional
            Timeout for connecting, instead of `CONNECT_SECONDS`.

        Yields
        ------
        Client
            The connected client.

        Raises
        ------
        click.ClickException
            If no scheduler answers at the address, or the address is invalid.
        """
        address = self.address()
        security = self.security() or Security()
        patience = seconds or CONNECT_SECONDS
        try:
            asyncio.run(_greet(address, security, patience))
            client = make(address, security=security, timeout=patience)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise click.ClickException(f"cannot reach a scheduler at {address}: {_reason(error)}") from error
        with client:
            yield client


async def _greet(address: str, security: Security, seconds: float) -> None:
    """Connect, and leave: a client would wait forever for a greeting of another port, such as that of a dashboard."""

    async def greet() -> None:
        await (await connect(address, timeout=seconds, **security.get_connection_args("client"))).close()

    try:
        # Later than the timeout of `connect`, whose message is the better one where no port answers.
        await asyncio.wait_for(greet(), seconds + 1)
    except TimeoutError:
        raise OSError(f"no scheduler has answered after {seconds:g} s: is this the port of a dashboard?") from None


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the connection options; it receives a `Connection` as ``connection``."""

    @click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Address of the scheduler, such as tcp://10.0.0.1:8786. Without it: DASK_SCHEDULER_ADDRESS, or "
        "scheduler-address in Dask's configuration.",
    )
    @click.option("--tls-ca-file", type=PEM_FILE, help="CA certificates for TLS (PEM).")
    @click.option("--tls-cert", type=PEM_FILE, help="This client's certificate for TLS (PEM).")
    @click.option("--tls-key", type=PEM_FILE, help="The private key of --tls-cert (PEM).")
    @functools.wraps(command)
    def with_connection(
        scheduler: str | None, tls_ca_file: str | None, tls_cert: str | None, tls_key: str | None, **options: Any
    ) -> Any:
        return command(connection=Connection(scheduler, tls_ca_file, tls_cert, tls_key), **options)

    return with_connection
