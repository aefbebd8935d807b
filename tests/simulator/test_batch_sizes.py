"""Under backlog batches grow until the fixed cost of a batch no longer matters, from every start."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saturated import Saturated

FIXED = [0.0, 0.0001, 0.001, 0.01, 0.05]
EACH = [1e-7, 1e-5, 1e-3, 0.02]


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("fixed", FIXED)
def test_throughput_reaches_that_of_the_best_size(fixed, each, collapsed):
    job = Saturated(fixed, each)
    if collapsed:
        job.collapse()
    job.run(until=60.0, batches=2_000)
    assert job.throughput(job.now / 2) >= 0.8 * job.best()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(FIXED), st.sampled_from(EACH), st.sampled_from([0.001, 0.01, 0.05]), st.integers(0, 99))
def test_noise_does_not_keep_batches_small(fixed, each, noise, seed):
    job = Saturated(fixed, each, noise, seed=seed)
    job.collapse()
    job.run(until=120.0, batches=2_000)
    assert job.throughput(job.now / 2) >= 0.7 * job.best()
