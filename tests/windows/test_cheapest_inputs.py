"""The inputs of an instance adjoin each other, and no others have fewer keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.windows.cheapest_inputs import cheapest_inputs
from dask_elastic.windows.consolidation import plan
from dask_elastic.windows.window import Window

SPANS = st.dictionaries(
    st.tuples(st.integers(-3, 9), st.integers(1, 6)).map(lambda span: (span[0], span[0] + span[1])),
    st.integers(1, 9),
    max_size=8,
)


def ways(begin, end, complete):
    """All ways to form an instance."""
    if begin == end:
        yield []
    for span in {(begin, begin + 1), *(span for span in complete if span[0] == begin and span[1] <= end)}:
        if span[1] <= end:
            for rest in ways(span[1], end, complete):
                yield [span, *rest]


def cost(inputs, complete, keys):
    single = [min(keys[first], complete.get((first, last), 10**9)) if last == first + 1 else complete[first, last]
              for first, last in inputs]  # fmt: skip
    return sum(single)


@given(st.integers(0, 3), st.integers(1, 6), SPANS, st.lists(st.integers(1, 9), min_size=12, max_size=12))
def test_no_other_inputs_have_fewer_keys(begin, length, complete, keys):
    end, keys = begin + length, dict(enumerate(keys))
    found = cheapest_inputs(begin, end, complete, keys)
    assert [first for first, _ in found] == [begin, *(last for _, last in found[:-1])]
    assert found[-1][1] == end
    assert cost(found, complete, keys) == min(cost(way, complete, keys) for way in ways(begin, end, complete))


def test_without_complete_instances_all_slices_are_merged():
    assert cheapest_inputs(5, 8, {}, {}) == [(5, 6), (6, 7), (7, 8)]


def test_steady_state_is_that_of_the_plan_for_the_paper_s_windows():
    # Enorm, figure 7: in the hour, 86 results are merged.
    lengths = (5, 10, 15, 20)
    complete, merged = {}, 0
    for end in range(5, 61, 5):
        for length in lengths:
            if end % length == 0:
                merged += len(cheapest_inputs(end - length, end, complete, {}))
                complete[end - length, end] = 1
    assert merged == plan([Window.tumbling(length) for length in lengths], slice=1, horizon=60).merges == 86
