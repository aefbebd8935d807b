"""Frozen values whose classes share their methods behave as frozen dataclasses do."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import field
from functools import cached_property

import pytest

from dask_elastic.vocab.shared_methods import SharedMethods


class Interval(SharedMethods):
    first: int
    last: int = 10
    marks: list[int] = field(default_factory=list)


class Empty(SharedMethods):
    """A value without fields."""


class Circle(SharedMethods):
    radius: int

    @cached_property
    def area(self):
        return 3 * self.radius**2


class NamedInterval(Interval):
    name: str = "a"


@dataclasses.dataclass(frozen=True)
class Generated:
    first: int
    last: int = 10
    marks: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    ("values", "named"), [((1,), {}), ((1, 2), {}), ((), {"first": 1}), ((1,), {"marks": [3]}), ((1, 2, [3]), {})]
)
def test_value_is_that_of_a_generated_dataclass(values, named):
    shared, generated = Interval(*values, **named), Generated(*values, **named)
    assert dataclasses.asdict(shared) == dataclasses.asdict(generated)
    assert repr(shared) == repr(generated).replace("Generated", "Interval")


@pytest.mark.parametrize("kind", [Interval, Generated])
@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, [], 4), {}), ((1,), {"first": 1}), ((1,), {"middle": 5})]
)
def test_wrong_arguments_are_refused(values, named, kind):
    with pytest.raises(TypeError, match=f"{kind.__name__}"):
        kind(*values, **named)


def test_default_of_a_field_is_not_shared():
    assert Interval(1).marks is not Interval(1).marks


def test_values_are_frozen():
    interval = Interval(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="first"):
        interval.first = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="first"):
        del interval.first
    assert interval.first == 1


def test_values_are_equal_if_class_and_fields_are():
    assert Interval(1) == Interval(first=1, last=10)
    assert Interval(1) != Interval(2)
    assert Interval(1) != Generated(1)
    assert Interval(1) != NamedInterval(1)
    assert len({Empty(), Empty()}) == 1
    assert hash(Interval(1, 2, ())) == hash(Interval(1, 2, ()))


def test_what_a_value_caches_does_not_distinguish_it():
    first, second = Circle(3), Circle(3)
    assert first.area == 27
    assert first == second
    assert hash(first) == hash(second)


def test_subclass_has_the_fields_of_its_base_first():
    assert NamedInterval(1, 2, [], "b") == dataclasses.replace(NamedInterval(1, name="b"), last=2)


def test_fields_are_matched_by_position():
    match Interval(1, 2):
        case Interval(first, last):
            assert (first, last) == (1, 2)


def test_value_can_be_pickled():
    assert pickle.loads(pickle.dumps(Interval(1, marks=[2]))) == Interval(1, marks=[2])
