"""Calls between processes are typed at both ends, and none is left whose name is a string."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import pkgutil
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dask_elastic._version import __version__
from dask_elastic.runtime import protocol
from dask_elastic.runtime.protocol.calls import (
    Call,
    Version,
    answer_codec,
    answer_type,
    handlers_of,
    is_reply,
    message_of,
    read_answer,
    read_call,
)
from dask_elastic.runtime.protocol.checkpoint_calls import CheckpointCall
from dask_elastic.runtime.protocol.codec import fields
from dask_elastic.runtime.protocol.group_calls import GroupCall
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.scheduler import coordinator
from dask_elastic.runtime.worker import handlers, staging_server
from dask_elastic.vocab.errors import PlanningError, VersionMismatch

ROOT = Path(__file__).parents[2]


class Half(Call[float]):
    number: int
    digits: int = 3


def declared_calls():
    """Return every call class of the protocol."""
    modules = (
        importlib.import_module(f"{protocol.__name__}.{m.name}") for m in pkgutil.iter_modules(protocol.__path__)
    )
    classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {
        kind for kind in classes if issubclass(kind, Call) and kind not in (Call, PartCall, CheckpointCall, GroupCall)
    }


# calls are frozen dataclasses


def test_calls_are_equal_by_class_and_values():
    assert Half(1) == Half(number=1, digits=3) != Half(2)
    assert Half(1) != PartCall("job", 1)
    assert len({Half(1), Half(digits=3, number=1), Half(1, 4)}) == 2
    assert repr(Half(1)) == "Half(number=1, digits=3)"
    assert replace(Half(1), digits=5) == pickle.loads(pickle.dumps(Half(1, 5)))


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, 3), {}), ((1,), {"number": 1}), ((1,), {"other": 1}), ((), {"digits": 1})]
)
def test_call_with_other_arguments_is_refused(values, named):
    with pytest.raises(TypeError, match=r"Half (takes \['number', 'digits'\], each once|lacks 'number')"):
        Half(*values, **named)


def test_call_cannot_be_changed():
    with pytest.raises(FrozenInstanceError, match="number"):
        Half(1).number = 2


# structure


def test_every_call_has_one_handler_in_one_process(monkeypatch, fake):
    found = []

    def collect(*handled):
        found.extend(one.call for one in handled)
        return {}

    for module in (coordinator, handlers, staging_server):
        monkeypatch.setattr(module, "handlers_of", collect)
    coordinator.Coordinator(fake.Scheduler({})).handlers()
    scheduler = [*found]
    handlers.Handlers(SimpleNamespace()).handlers()
    staging_server.StagingServer(SimpleNamespace()).handlers()
    worker = found[len(scheduler) :]
    assert sorted(scheduler, key=str) == sorted(set(scheduler), key=str)
    assert sorted(worker, key=str) == sorted(set(worker), key=str)
    assert set(scheduler) & set(worker) == {Version}
    assert {*scheduler, *worker} == declared_calls()


@pytest.mark.parametrize("kind", sorted(declared_calls(), key=lambda kind: f"{kind.__module__}.{kind.__name__}"))
def test_fields_and_answer_of_every_call_are_serializable(kind):
    assert fields(kind).names == tuple(kind.__dataclass_fields__)
    assert answer_codec(kind) is not None
    assert kind.operation == "elastic_" + re.sub("([A-Z])", r"_\1", kind.__name__).lower().lstrip("_")
    assert not {"op", "reply", "close", "comm", "serializers", "deserializers"} & {*fields(kind).names}


def test_source_contains_no_call_named_by_string():
    """Streams to workers and the plugin's own operation are no calls, nor are modules."""
    streams = {"elastic_stream", "elastic_stage", "elastic_push", "elastic_uninstall", "elastic_"}
    modules = {path.stem for path in (ROOT / "dask_elastic").rglob("elastic_*.py")}
    found = {
        (path.name, name)
        for top in ("dask_elastic", "plugins", "benchmarks", "examples")
        for path in (ROOT / top).rglob("*.py")
        for name in re.findall(r"(?<=[\"'.])elastic_\w*", path.read_text())
    }
    assert {name for _, name in found} <= streams | modules


# both ends of a call


def test_call_is_answered_by_its_method():
    async def half(call: Half) -> float:
        return round(call.number / 2, call.digits)

    reply = asyncio.run(handlers_of(Half.handled_by(half))["elastic_half"](**message_of(Half(3))))
    assert is_reply(reply)
    assert read_answer(Half(3), reply) == 1.5


def test_error_of_method_is_raised_at_the_caller():
    async def half(call: Half) -> float:
        raise PlanningError(f"no half of {call.number}")

    reply = asyncio.run(handlers_of(Half.handled_by(half))["elastic_half"](**message_of(Half(3))))
    with pytest.raises(PlanningError, match="no half of 3"):
        read_answer(Half(3), reply)


def test_second_method_for_one_call_is_refused():
    async def half(call: Half) -> float:
        return 0.0

    with pytest.raises(ValueError, match="elastic_half has two handlers"):
        handlers_of(Half.handled_by(half), Half.handled_by(half))


@pytest.mark.parametrize(
    "message", [{}, {"number": 1}, {"number": 1, "places": 2}, {"number": 1, "digits": 2, "up": 1}]
)
def test_call_with_other_arguments_is_a_version_mismatch(message):
    with pytest.raises(VersionMismatch, match=rf"{re.escape(__version__)} cannot read the call elastic_half"):
        read_call(Half, message)


def test_answer_of_another_shape_is_a_version_mismatch():
    with pytest.raises(VersionMismatch, match="cannot read the answer to elastic_list_jobs"):
        read_answer(protocol_call("ListJobs")(), {"answer": [("a-job", "running")]})


def protocol_call(name):
    return next(kind for kind in declared_calls() if kind.__name__ == name)


def test_reply_of_server_without_operation_is_none():
    assert not is_reply(None)
    assert not is_reply({"status": "OK"})


def test_call_without_answer_type_is_refused():
    class Bare(Call):
        pass

    with pytest.raises(TypeError, match=r"Bare does not say what its answer is: derive it from Call\[\.\.\.\]"):
        answer_type(Bare)
