"""An executor as an M/M/k queue: Poisson arrivals, exponential service times, k cores (Elasticutor, section 4.1).

Probabilities are computed by the Erlang-B recursion, which is numerically stable for any number of servers; the
factorials of the textbook formula of Erlang C overflow (first erratum to Elasticutor).
"""

from __future__ import annotations

import math
import operator

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number

MOST_SERVERS = 1 << 20
"""The most servers of a queue: the recursion takes a step for each."""


def erlang_b(load: float, servers: int) -> float:
    """Return Erlang B: the probability that all servers are busy in a system without a queue.

    Parameters
    ----------
    load : float
        Arrival rate divided by the service rate of one server.
    servers : int
        Number of servers.

    Returns
    -------
    float
        Between 0 and 1; 1 without servers.

    Examples
    --------
    >>> erlang_b(2.0, 2)
    0.4
    """
    blocking = 1.0
    for count in range(1, servers + 1):
        blocking = next_erlang_b(load, count, blocking)
    return blocking


def next_erlang_b(load: float, servers: int, blocking: float) -> float:
    """Return Erlang B by one step of its recursion in the number of servers.

    Parameters
    ----------
    load : float
        Arrival rate divided by the service rate of one server.
    servers : int
        Number of servers.
    blocking : float
        Erlang B of the same load and one server fewer.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> next_erlang_b(2.0, 2, erlang_b(2.0, 1))
    0.4
    """
    busy = load * blocking
    return busy / (servers + busy)


def erlang_c(load: float, servers: int, blocking: float) -> float:
    """Return Erlang C: the probability that a customer must wait. The load must be below the number of servers.

    Parameters
    ----------
    load : float
        Arrival rate divided by the service rate of one server.
    servers : int
        Number of servers.
    blocking : float
        Erlang B of the same load and servers.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> round(erlang_c(0.5, 1, erlang_b(0.5, 1)), 12)
    0.5
    """
    return servers * blocking / (servers - load + load * blocking)


def waiting_customers(load: float, servers: int, blocking: float) -> float:
    """Return the mean number of waiting customers.

    Parameters
    ----------
    load : float
        Arrival rate divided by the service rate of one server.
    servers : int
        Number of servers.
    blocking : float
        Erlang B of the same load and servers.

    Returns
    -------
    float
        ``inf`` if the load is not below the number of servers.

    Examples
    --------
    >>> round(waiting_customers(0.5, 1, erlang_b(0.5, 1)), 12)
    0.5
    """
    spare = servers - load
    if spare <= 0:
        return math.inf
    return erlang_c(load, servers, blocking) * load / spare


def mmk_sojourn(arrival: float, service: float, servers: int) -> float:
    """Return the mean sojourn time of a customer in an M/M/k queue: waiting plus service.

    Parameters
    ----------
    arrival : float
        Arrival rate λ, per second.
    service : float
        Service rate μ of one server, per second.
    servers : int
        Number of servers k.

    Returns
    -------
    float
        Seconds; ``inf`` if λ ≥ k·μ, and always without servers.

    Raises
    ------
    PlanningError
        If a rate is negative or not finite, the service rate is 0, or the number of servers negative or not whole.

    Notes
    -----
    Elasticutor, section 4.1: E[T_j](k_j), with Erlang C from the Erlang-B recursion (first erratum).

    Examples
    --------
    >>> mmk_sojourn(1.0, 2.0, 1)
    1.0
    >>> mmk_sojourn(3.0, 2.0, 1)
    inf
    """
    count = whole("servers", servers, MOST_SERVERS)
    if not (is_number(arrival) and 0 <= arrival < math.inf):
        raise PlanningError(f"arrival is {arrival!r}: give a finite rate of 0 or more.")
    if not (is_number(service) and 0 < service < math.inf):
        raise PlanningError(f"service is {service!r}: give a finite rate above 0.")
    load = float(arrival) / float(service)
    if not load < count:
        return math.inf
    must_wait = erlang_c(load, count, erlang_b(load, count))
    return float((1.0 + must_wait / (count - load)) / service)


def whole(name: str, value: object, most: int | None = None) -> int:
    """Return a count as an integer.

    Parameters
    ----------
    name : str
        Name of the value, for the error message.
    value : object
        The value.
    most : int, optional
        The largest value that is accepted.

    Returns
    -------
    int
        The value as an integer.

    Raises
    ------
    PlanningError
        If it is negative, larger than `most`, or not a whole number; the message contains its name.

    Examples
    --------
    >>> whole("servers", 3.0)
    3
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        if not (isinstance(value, float) and value.is_integer()):
            raise PlanningError(f"{name} is {value!r}: give a whole number of 0 or more.") from None
        count = int(value)
    if count < 0:
        raise PlanningError(f"{name} is {count}: give a whole number of 0 or more.")
    if most is not None and count > most:
        raise PlanningError(f"{name} is {count}: give at most {most}.")
    return count
