"""Clusters reachable over a network without TLS cause one warning, or are refused."""

from __future__ import annotations

import warnings

import dask
import pytest

from dask_elastic.runtime.config import tls_policy as exposure
from dask_elastic.runtime.config.tls_policy import ExposedCluster, check_exposure
from dask_elastic.runtime.config.worker_options import worker_options
from dask_elastic.vocab.errors import SubmitError

OPEN = ["tcp://10.0.0.7:8786", "ws://example.org:80", "tcp://[2001:db8::1]:8786"]
SAFE = ["tls://10.0.0.7:8786", "tcp://127.0.0.1:1", "tcp://127.8.0.1:1", "tcp://[::1]:8786", "tcp://localhost:1",
        "inproc://192.168.0.1/1/2", "wss://example.org:80"]  # fmt: skip


@pytest.fixture(autouse=True)
def no_warning_given(monkeypatch):
    monkeypatch.setattr(exposure._ONCE, "warned", False)


@pytest.mark.parametrize("address", SAFE)
def test_loopback_and_tls_are_accepted_without_a_warning(address):
    with warnings.catch_warnings(), dask.config.set({"elastic.require-tls": True}):
        warnings.simplefilter("error")
        check_exposure([address])


@pytest.mark.parametrize("address", OPEN)
def test_network_without_tls_warns_once(address):
    with pytest.warns(ExposedCluster, match="Dask listens without TLS on"):
        check_exposure([*SAFE, address])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_exposure([address])


@pytest.mark.parametrize("address", OPEN)
def test_network_without_tls_is_refused_if_require_tls_is_set(address):
    with dask.config.set({"elastic.require-tls": "true"}), pytest.raises(SubmitError, match="require-tls is true"):
        check_exposure([address])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("require-tls", "perhaps"),
        ("max-frame", "1MiB"),
        ("max-frame", "much"),
        ("heartbeat-timeout", "500ms"),
        ("heartbeat-interval", 0),
        ("memory-limit", 0.5),
        ("memory-pressure", "most"),
    ],
)
def test_wrong_worker_option_is_refused_by_name(option, value):
    with dask.config.set({f"elastic.{option}": value}), pytest.raises(SubmitError, match=rf"elastic\.{option}"):
        worker_options()
