"""Docstrings of the public API are complete: what the API reference lists has every section that applies to it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from numpydoc.docscrape import NumpyDocString

import dask_elastic

# Names, as the API reference lists them, whose docstrings still lack a section. Only ever remove names.
INCOMPLETE: frozenset[str] = frozenset()

DOCS = Path(__file__).parents[2] / "docs"
DIRECTIVE = re.compile(
    r"^\.\. (?P<kind>currentmodule|autofunction|autoclass|autoexception):: (?P<name>[\w.]+)(?P<bare>\(\))?\n"
    r"(?:   :members:(?P<members>.*)\n)?(?P<inherited>   :inherited-members:\n)?",
    re.MULTILINE,
)
ATTRIBUTES = (property, cached_property)


class Documented(NamedTuple):
    """An object of the public API.

    `owner` is the class that defines a method. `made` is whether users call it: the reference shows a class that only
    the engine makes without parameters.
    """

    name: str
    value: Any
    owner: type | None = None
    made: bool = True


def documented_on(page: str) -> list[Documented]:
    """Return what a page of the reference documents, with the members of its classes."""
    found, module = [], ""
    for directive in DIRECTIVE.finditer(page):
        if directive["kind"] == "currentmodule":
            module = directive["name"]
            continue
        name = directive["name"] if directive["name"].startswith("dask_elastic.") else f"{module}.{directive['name']}"
        value = resolved(name)
        found.append(Documented(name, value, made=directive["bare"] is None))
        if directive["members"] is not None:
            chosen = {part.strip() for part in directive["members"].split(",")} - {""}
            found += members(name, value, chosen, bases=directive["inherited"] is not None)
    return found


def resolved(name: str) -> Any:
    """Return the object of a dotted name; where a package has a function and a module of one name, the function."""
    value: Any = dask_elastic
    parts = name.split(".")
    for count, part in enumerate(parts[1:], start=2):
        value = getattr(value, part, None) or importlib.import_module(".".join(parts[:count]))
    return value


def members(name: str, kind: type, chosen: set[str], bases: bool) -> list[Documented]:
    """Return the public methods and properties that a class defines, with `bases` also those that it inherits."""
    defining = [base for base in kind.__mro__ if base is kind or (bases and base.__module__.startswith("dask_elastic"))]
    defined = {member: value for base in reversed(defining) for member, value in vars(base).items()}
    return [
        Documented(f"{name}.{member}", getattr(value, "__func__", value), kind)
        for member, value in defined.items()
        if (member in chosen if chosen else not member.startswith("_"))
        and (inspect.isroutine(value) or isinstance(value, ATTRIBUTES))
    ]


def public_api() -> dict[str, Documented]:
    """Return everything that the API reference documents, by name."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("api*.rst"))]
    return {documented.name: documented for page in pages for documented in documented_on(page)}


def problems(documented: Documented) -> list[str]:
    """Return what the docstring of an object lacks."""
    value, owner = documented.value, documented.owner
    if not value.__doc__:
        return ["has no docstring"]
    if isinstance(value, ATTRIBUTES) or overrides_documented(value, owner) or refers_to_documented(value):
        return []
    sections = NumpyDocString(inspect.cleandoc(value.__doc__))
    found = parameter_problems(value, sections) + raise_problems(value, sections) if documented.made else []
    if not inspect.isclass(value):
        found += result_problems(value, sections)
    if not (inspect.isclass(value) and issubclass(value, Exception)) and not has_example(value, owner, sections):
        found.append("no Examples")
    return found


def overrides_documented(value: Any, owner: type | None) -> bool:
    """Return whether a method overrides one whose docstring has sections, and so need not repeat them."""
    bases = owner.__mro__[1:] if owner is not None and value.__name__ in vars(owner) else ()
    inherited = [vars(base)[value.__name__].__doc__ or "" for base in bases if value.__name__ in vars(base)]
    return any("----" in text for text in inherited)


def refers_to_documented(value: Any) -> bool:
    """Return whether a docstring of one line refers to a method of the API, as "see `Source.read`" does."""
    reference = re.fullmatch(r".*; see `(\w+\.\w+)`\.", inspect.cleandoc(value.__doc__))
    return reference is not None and any(name.endswith(f".{reference[1]}") for name in API)


def constructor(kind: type) -> Any:
    """Return the __init__ that dask_elastic defines for a class, None where there is none."""
    owners = [base for base in kind.__mro__ if "__init__" in vars(base) and base.__module__.startswith("dask_elastic")]
    own = vars(owners[0])["__init__"] if owners else None
    return None if own is None or getattr(kind, "_is_protocol", False) else own


def parameter_problems(value: Any, sections: NumpyDocString) -> list[str]:
    """Compare the names under *Parameters* with those of the signature."""
    function = constructor(value) if inspect.isclass(value) else value
    if function is None:
        return []
    taken = parameter_names(function)
    given = [name.lstrip("\\") for entry in sections["Parameters"] for name in re.split(r",\s*", entry.name)]
    return [] if taken == given else [f"Parameters {given}, but takes {taken}"]


def parameter_names(function: Any) -> list[str]:
    """Return the parameters of a function as numpydoc writes them, without self."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(function).parameters.values()
    names = [stars.get(p.kind, "") + p.name for p in parameters if not p.name.startswith("_")]
    return names[names[:1] in (["self"], ["cls"]) :]


def result_problems(function: Any, sections: NumpyDocString) -> list[str]:
    """Return whether *Returns*, or for a generator *Yields*, is missing."""
    annotation = str(inspect.signature(function).return_annotation)
    if annotation in ("None", "NoReturn"):
        return []
    wanted = "Yields" if inspect.isgeneratorfunction(function) else "Returns"
    # An abstract method is no generator itself, but documents what its implementations yield.
    found = wanted if sections[wanted] or not annotation.startswith("Iterator") else "Yields"
    return [] if sections[found] else [f"no {wanted}, but returns {annotation}"]


def raise_problems(value: Any, sections: NumpyDocString) -> list[str]:
    """Return which errors that the function raises itself are missing under *Raises*."""
    function = constructor(value) if inspect.isclass(value) else value
    if function is None or function.__code__.co_filename.startswith("<"):  # made by dataclass
        return []
    listed = {name for entry in sections["Raises"] for name in re.split(r",\s*|\s+or\s+", entry.type)}
    missing = raised(textwrap.dedent(inspect.getsource(function))) - listed
    return [f"no Raises for {', '.join(sorted(missing))}"] if missing else []


def raised(source: str) -> set[str]:
    """Return the names of the error classes that a function's own body raises."""
    found, waiting = set(), list(ast.iter_child_nodes(ast.parse(source).body[0]))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func).split(".")[-1]
            found |= {name} if name[0].isupper() else set()
        waiting += ast.iter_child_nodes(node)
    return found


def has_example(value: Any, owner: type | None, sections: NumpyDocString) -> bool:
    """Return whether there are *Examples*; those of a class serve for the methods that they call."""
    if sections["Examples"] or owner is None:
        return bool(sections["Examples"])
    of_class = NumpyDocString(inspect.cleandoc(owner.__doc__ or ""))["Examples"]
    return re.search(rf"(\.|def ){value.__name__}\(", "\n".join(of_class)) is not None


API = public_api()


def test_reference_lists_everything_that_the_package_exports():
    listed = {id(documented.value) for documented in API.values()}
    modules = [dask_elastic, dask_elastic.aggregate, dask_elastic.sources, dask_elastic.sinks]
    exported = [(module.__name__, name, getattr(module, name)) for module in modules for name in module.__all__]
    objects = [entry for entry in exported if callable(entry[2])]
    assert [f"{module}.{name}" for module, name, value in objects if id(value) not in listed] == []


@pytest.mark.parametrize("name", sorted(API.keys() - INCOMPLETE))
def test_docstring_has_every_section_that_applies(name):
    assert problems(API[name]) == []


def test_incomplete_docstrings_are_incomplete():
    assert [name for name in sorted(INCOMPLETE) if name not in API or not problems(API[name])] == []


class Sample:
    """A class with an example for one method.

    Examples
    --------
    >>> Sample().shown()
    """

    def shown(self) -> None:
        """Have an example in the class's docstring."""

    def bare(self, given: int, *more: int) -> int:
        """Return something without any section."""
        if given:
            raise ValueError("no")
        return given

    def wrong(self, given: int) -> None:
        """Name a parameter that does not exist.

        Parameters
        ----------
        other : int
            Not a parameter.

        Examples
        --------
        >>> Sample().wrong(1)
        """

    def yielding(self) -> Iterator[int]:
        """Yield without a section.

        Examples
        --------
        >>> list(Sample().yielding())
        [1]
        """
        yield 1


class OtherSample(Sample):
    """Overrides a method whose docstring has sections, and one whose docstring has none."""

    def wrong(self, given: int) -> None:
        """Do it otherwise."""

    def bare(self, given: int, *more: int) -> int:
        """Return something else without any section."""
        return given


@pytest.mark.parametrize(
    ("owner", "method", "expected"),
    [
        (Sample, "shown", []),
        (
            Sample,
            "bare",
            [
                "Parameters [], but takes ['given', '*more']",
                "no Raises for ValueError",
                "no Returns, but returns int",
                "no Examples",
            ],
        ),
        (Sample, "wrong", ["Parameters ['other'], but takes ['given']"]),
        (Sample, "yielding", ["no Yields, but returns Iterator[int]"]),
        (OtherSample, "wrong", []),
        (
            OtherSample,
            "bare",
            ["Parameters [], but takes ['given', '*more']", "no Returns, but returns int", "no Examples"],
        ),
    ],
)
def test_missing_section_is_found(owner, method, expected):
    assert problems(Documented(method, vars(owner)[method], owner)) == expected


def test_reference_page_gives_its_names_and_members():
    function = ".. currentmodule:: dask_elastic\n\n.. autofunction:: submit\n\n"
    page = function + ".. autoclass:: dask_elastic.state.StateView()\n   :members: get\n"
    assert [(entry.name, entry.made) for entry in documented_on(page)] == [
        ("dask_elastic.submit", True),
        ("dask_elastic.state.StateView", False),
        ("dask_elastic.state.StateView.get", True),
    ]
