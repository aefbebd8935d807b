"""The TLS policy: addresses that are reached over a network without TLS are refused or warned of."""

from __future__ import annotations

import ipaddress
import logging
import warnings
from collections.abc import Iterable

from distributed.comm.addressing import get_address_host

from dask_elastic.runtime.config.worker_options import require_tls
from dask_elastic.vocab.errors import SubmitError

logger = logging.getLogger("dask_elastic.security")

IN_THE_CLEAR = frozenset({"tcp", "ucx", "ucxx", "ws"})
"""Transports of Dask without encryption and authentication."""

WARNING = (
    "Dask listens without TLS on {addresses}. Any program that can connect to such a port can run code on the cluster "
    "and read the rows of its jobs. Give the cluster TLS certificates (distributed.security.Security), or keep its "
    "network closed. elastic.require-tls: true refuses jobs there. This warning is given once."
)


class ExposedCluster(UserWarning):
    """Warns of a cluster that can be reached over a network without TLS."""


class _Once:
    def __init__(self) -> None:
        self.warned = False


_ONCE = _Once()


def is_exposed(address: str) -> bool:
    """Return whether an address is reached over a network without TLS.

    Examples
    --------
    >>> [is_exposed(a) for a in ("tcp://10.0.0.7:8786", "tls://10.0.0.7:8786", "tcp://127.0.0.1:8786", "inproc://a/1")]
    [True, False, False, False]
    """
    scheme, separator, _ = address.partition("://")
    if not separator or scheme not in IN_THE_CLEAR:
        return False
    host: str = get_address_host(address)
    try:
        return not ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host != "localhost"


def check_exposure(addresses: Iterable[str], refuse: bool | None = None) -> None:
    """Refuse addresses that are reached over a network without TLS, or warn of them once in a process.

    Parameters
    ----------
    addresses : iterable of str
        Addresses of schedulers and workers.
    refuse : bool, optional
        Whether to refuse them; the option ``elastic.require-tls`` if left out.

    Raises
    ------
    SubmitError
        If such addresses are refused.
    """
    exposed = sorted({address for address in addresses if is_exposed(address)})
    if not exposed:
        return
    listed = ", ".join(exposed[:3]) + (f" and {len(exposed) - 3} more addresses" if len(exposed) > 3 else "")
    if require_tls() if refuse is None else refuse:
        raise SubmitError(
            f"elastic.require-tls is true, and Dask listens without TLS on {listed}. Start the cluster with "
            "certificates (distributed.security.Security), or on loopback only."
        )
    if not _ONCE.warned:
        _ONCE.warned = True
        text = WARNING.format(addresses=listed)
        logger.warning("%s", text)
        warnings.warn(text, ExposedCluster, stacklevel=3)
