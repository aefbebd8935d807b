from __future__ import annotations

import importlib.util
from importlib import metadata

import pyarrow as pa
import pytest

from dask_elastic.connectors import libraries, sinks, sources
from dask_elastic.connectors.libraries import lacking
from dask_elastic.topology import SinkContext
from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.errors import SinkError, SourceError

LIBRARIES = [
    ("deltalake", "deltalake", "delta"),
    ("adbc_driver_manager", "adbc-driver-manager", "postgres"),
    ("adbc_driver_postgresql", "adbc-driver-postgresql", "postgres"),
    ("confluent_kafka", "confluent-kafka", "kafka"),
]


@pytest.fixture
def versions(monkeypatch):
    """Versions of distributions that seem to be installed."""
    installed, found = metadata.version, {}
    monkeypatch.setattr(metadata, "version", lambda name: found.get(name) or installed(name))
    return found


def opened(distribution, tmp_path):
    context = SinkContext("job", "out", node=0, instance=0, run="r", checkpoints=True, generation=0, restored=False)
    match distribution:
        case "deltalake":
            sinks.Delta(tmp_path).open(context)
        case "confluent-kafka":
            sinks.Kafka("topic", servers="localhost:1").open(context)
        case _:
            sinks.Postgres("postgresql://localhost:1/none", "table").open(context)


@pytest.mark.parametrize(("module", "distribution", "extra"), LIBRARIES)
def test_installed_libraries_are_required_by_their_extra_and_meet_it(module, distribution, extra):
    required = libraries._requirement(distribution, extra)
    assert str(required.specifier).startswith(">=")
    assert lacking(module, distribution, extra) is None


@pytest.mark.parametrize(("module", "distribution", "extra"), LIBRARIES)
def test_sinks_refuse_older_libraries_by_name(module, distribution, extra, versions, tmp_path):
    versions[distribution] = "1.0.0"
    text = rf"{distribution} 1\.0\.0 does not meet >=.*; install dask-elastic\[{extra}\] on all workers\."
    with pytest.raises(SinkError, match=text):
        opened(distribution, tmp_path)


@pytest.mark.parametrize(("module", "distribution", "extra"), LIBRARIES)
def test_sinks_refuse_to_work_without_their_library(module, distribution, extra, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    with pytest.raises(SinkError, match=rf"{distribution} is missing; install dask-elastic\[{extra}\]"):
        opened(distribution, tmp_path)


def test_kafka_source_refuses_an_older_library(versions):
    versions["confluent-kafka"] = "1.0.0"
    source = sources.Kafka("topic", servers="localhost:1", schema=pa.schema({"n": pa.int64()}))
    with pytest.raises(SourceError, match=r"confluent-kafka 1\.0\.0 does not meet"):
        next(iter(source.read(SourceContext())))


def test_newer_and_development_versions_are_accepted(versions):
    for version in ("99.0", "99.0.dev1", "2.0rc1"):
        versions["deltalake"] = version
        assert lacking("deltalake", "deltalake", "delta") is None


def test_without_installation_any_version_is_accepted(monkeypatch):
    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    libraries._requirement.cache_clear()
    try:
        assert lacking("deltalake", "deltalake", "delta") is None
    finally:
        libraries._requirement.cache_clear()
