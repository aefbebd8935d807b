from __future__ import annotations

import socket

import dask
import pytest
from distributed import LocalCluster
from distributed.security import Security
from distributed.utils_test import captured_logger

from dask_elastic.cli import connection
from dask_elastic.runtime.client.dashboard_page import dashboard_page


def test_missing_address_error_names_all_ways_to_give_one(invoke):
    refused = invoke("status")
    assert refused.exit_code == 2
    for way in ("--scheduler", "DASK_SCHEDULER_ADDRESS", "scheduler-address"):
        assert way in refused.output


def test_address_is_read_from_the_configuration(invoke, address, client):
    with dask.config.set({"scheduler-address": address}):
        assert invoke("status").output == f"No jobs at {address}.\n"


def test_cluster_without_dask_elastic_is_reported_with_the_fix_and_logs_no_call(invoke, address):
    with captured_logger("distributed.core", level="WARNING") as log:
        assert invoke("status", "--scheduler", address).output == f"No jobs at {address}.\n"
        refused = invoke("stop", "any", "--scheduler", address)
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: this cluster does not host dask_elastic")
    assert "dask_elastic.submit" in refused.output
    assert "--preload dask_elastic_plugins.install" in refused.output
    assert "elastic_" not in log.getvalue()


def test_address_in_environment_is_part_of_the_configuration():
    configured = dask.config.collect(paths=[], env={"DASK_SCHEDULER_ADDRESS": "tcp://a:1"})
    assert dask.config.get("scheduler-address", config=configured) == "tcp://a:1"


def test_option_takes_precedence_over_configuration(invoke, address, client):
    with dask.config.set({"scheduler-address": "tcp://127.0.0.1:9"}):
        assert invoke("status", "--scheduler", address).exit_code == 0


def test_unreachable_scheduler_is_reported_in_one_line(invoke, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.2)
    refused = invoke("status", "--scheduler", "tcp://127.0.0.1:9")
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert line.startswith("Error: cannot reach a scheduler at tcp://127.0.0.1:9: ")


def test_port_that_is_none_of_a_scheduler_is_reported_in_one_line(invoke, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        refused = invoke("status", "--scheduler", address)
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert line.startswith(f"Error: cannot reach a scheduler at {address}: no scheduler has answered after 0.2 s")


def test_address_of_unknown_protocol_is_reported_in_one_line(invoke):
    refused = invoke("status", "--scheduler", "unknown://host")
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert line.startswith("Error: cannot reach a scheduler at unknown://host: ")


def test_certificate_without_key_is_refused(invoke, tmp_path):
    (tmp_path / "cert.pem").touch()
    refused = invoke("status", "--scheduler", "tls://127.0.0.1:9", "--tls-cert", tmp_path / "cert.pem")
    assert refused.exit_code == 2
    assert "--tls-key" in refused.output


@pytest.fixture
def pem_files(tmp_path):
    """Return a temporary security, and the TLS options of its files."""
    security = Security.temporary()
    contents = {
        "--tls-ca-file": security.tls_ca_file,
        "--tls-cert": security.tls_client_cert,
        "--tls-key": security.tls_client_key,
    }
    options = []
    for option, text in contents.items():
        path = tmp_path / f"{option.strip('-')}.pem"
        path.write_text(text)
        options += [option, str(path)]
    return security, options


def test_tls_files_are_used_for_the_connection(invoke, pem_files, monkeypatch):
    security, options = pem_files
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tls://", security=security, dashboard_address=":0"
    ) as cluster:
        address = cluster.scheduler_address
        assert invoke("status", "--scheduler", address, *options).output == f"No jobs at {address}.\n"
        monkeypatch.setattr(connection, "CONNECT_SECONDS", 1.0)
        refused = invoke("status", "--scheduler", address)
        assert refused.exit_code == 1
        assert "cannot reach a scheduler" in refused.output


def test_page_is_on_the_dashboard_of_dask(client):
    page = dashboard_page(client)
    assert page == client.dashboard_link.removesuffix("/status") + "/elastic"
    assert dashboard_page(client, "two words") == page + "?job=two%20words"


def test_page_uses_the_configured_proxy_link(client):
    with dask.config.set({"distributed.dashboard.link": "https://hub/user/me/proxy/{port}/status"}):
        assert dashboard_page(client).startswith("https://hub/user/me/proxy/")
        assert dashboard_page(client).endswith("/elastic")


class ClientWithoutDashboard:
    """A client whose scheduler serves no dashboard."""

    def __init__(self, link=None):
        self.link = link

    @property
    def dashboard_link(self):
        if self.link is None:
            raise KeyError("dashboard")
        return self.link


def test_page_is_none_without_dashboard():
    assert dashboard_page(ClientWithoutDashboard()) is None
    assert dashboard_page(ClientWithoutDashboard("")) is None
