"""The options of a Spark writer: missing and invalid ones are refused."""

from __future__ import annotations

import dask.config
import pytest

from dask_elastic.runtime.protocol.handoff_calls import HandoffPlaces
from dask_elastic.spark.staging_connection import call_scheduler
from dask_elastic.spark.target import Target
from dask_elastic.vocab.errors import HandoffError

GIVEN = {"job": "flights", "address": "tcp://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "tcp://host:8786"}, "needs the name of the job"),
        ({"job": "flights"}, "needs the address of the Dask scheduler"),
        ({**GIVEN, "epoch": "-1"}, "option epoch is '-1'"),
        ({**GIVEN, "epoch": "first"}, "option epoch is 'first'"),
        ({**GIVEN, "end": "yes"}, "option end is 'yes'"),
        ({**GIVEN, "sources": "a"}, "has no option 'sources': choose from job, source"),
    ],
)
def test_invalid_target_options_are_refused(options, message):
    with dask.config.set({"scheduler-address": None}), pytest.raises(HandoffError, match=message):
        Target.from_options(options)


def test_options_ignore_case_and_default_to_the_configuration():
    with dask.config.set({"scheduler-address": "tcp://host:8786"}):
        target = Target.from_options({"JOB": "flights", "Epoch": "3", "END": "True", "checkpointLocation": "/data"})
    assert target == Target("tcp://host:8786", "flights", epoch=3, end=True, checkpoint="/data")
    assert Target.from_options({**GIVEN, "tls_ca_file": "ca.pem"}).tls == (("tls_ca_file", "ca.pem"),)


def test_unreachable_cluster_is_named():
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(HandoffError, match=r"Dask at tcp://127\.0\.0\.1:1 cannot be reached from Spark"),
    ):
        call_scheduler(Target.from_options(GIVEN), HandoffPlaces("flights", None))
