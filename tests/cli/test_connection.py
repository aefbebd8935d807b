from __future__ import annotations

import dask
import pytest
from distributed import LocalCluster
from distributed.security import Security

from dask_elastic.cli import connection


def test_without_an_address_all_ways_to_give_one_are_named(invoke):
    refused = invoke("status")
    assert refused.exit_code == 2
    for way in ("--scheduler", "DASK_SCHEDULER_ADDRESS", "scheduler-address"):
        assert way in refused.output


def test_the_address_is_found_in_the_configuration(invoke, address, client):
    with dask.config.set({"scheduler-address": address}):
        assert invoke("status").output == f"No jobs at {address}.\n"


def test_the_environment_is_part_of_the_configuration():
    configured = dask.config.collect(paths=[], env={"DASK_SCHEDULER_ADDRESS": "tcp://a:1"})
    assert dask.config.get("scheduler-address", config=configured) == "tcp://a:1"


def test_the_option_goes_before_the_configuration(invoke, address, client):
    with dask.config.set({"scheduler-address": "tcp://127.0.0.1:9"}):
        assert invoke("status", "--scheduler", address).exit_code == 0


def test_nobody_at_the_address_is_one_line(invoke, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.2)
    refused = invoke("status", "--scheduler", "tcp://127.0.0.1:9")
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert line.startswith("Error: cannot reach a scheduler at tcp://127.0.0.1:9: ")


def test_an_address_of_an_unknown_kind_is_one_line(invoke):
    refused = invoke("status", "--scheduler", "smoke://hill")
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert line.startswith("Error: cannot reach a scheduler at smoke://hill: ")


def test_a_certificate_without_its_key_is_refused(invoke, tmp_path):
    (tmp_path / "cert.pem").touch()
    refused = invoke("status", "--scheduler", "tls://127.0.0.1:9", "--tls-cert", tmp_path / "cert.pem")
    assert refused.exit_code == 2
    assert "--tls-key" in refused.output


@pytest.fixture
def pem_files(tmp_path):
    """Options for the files of a security of our own, and that security."""
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


def test_tls_by_files(invoke, pem_files, monkeypatch):
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


def test_the_page_is_beside_dasks_own(client):
    page = connection.dashboard_page(client)
    assert page == client.dashboard_link.removesuffix("/status") + "/elastic"


def test_the_page_is_found_behind_a_proxy(client):
    with dask.config.set({"distributed.dashboard.link": "https://hub/user/me/proxy/{port}/status"}):
        assert connection.dashboard_page(client).startswith("https://hub/user/me/proxy/")
        assert connection.dashboard_page(client).endswith("/elastic")


class Undashed:
    """A client whose scheduler serves no dashboard."""

    def __init__(self, link=None):
        self.link = link

    @property
    def dashboard_link(self):
        if self.link is None:
            raise KeyError("dashboard")
        return self.link


def test_no_dashboard_no_page():
    assert connection.dashboard_page(Undashed()) is None
    assert connection.dashboard_page(Undashed("")) is None
