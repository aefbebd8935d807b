"""Finding files by path, glob or URL on whatever file system holds them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
from pyarrow import fs

WILDCARDS = re.compile(r"[*?\[]")


def full_path(path: str | os.PathLike[str]) -> str:
    """Make a local path absolute, so that it means the same on every machine; leave URLs alone.

    Parameters
    ----------
    path : str or path
        A local path, which may start with `~`, or a URL such as `s3://bucket/folder`.

    Returns
    -------
    str
        The absolute path, or the URL.

    Examples
    --------
    >>> full_path("s3://bucket/folder"), full_path("/data/*.parquet")
    ('s3://bucket/folder', '/data/*.parquet')
    """
    text = os.fspath(path)
    return text if "://" in text else Path(text).expanduser().absolute().as_posix()


def locate(path: str, options: Mapping[str, Any] | None = None) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path there.

    Parameters
    ----------
    path : str
        An absolute local path or a URL, without wildcards.
    options : mapping, optional
        Options for fsspec, which is then asked even for URLs that PyArrow knows itself.

    Returns
    -------
    tuple of FileSystem and str
        PyArrow's own file system where it has one for the URL, else the one of fsspec.

    Raises
    ------
    ValueError
        When no file system is known for the URL.
    """
    if "://" not in path:
        return fs.LocalFileSystem(), path
    if options is None:
        try:
            filesystem, inner = fs.FileSystem.from_uri(path)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass  # PyArrow has no file system for this scheme; fsspec may have one, or raises a ValueError.
        else:
            return filesystem, inner
    other, inner = fsspec.core.url_to_fs(path, **(options or {}))
    return fs.PyFileSystem(fs.FSSpecHandler(other)), inner


@dataclass(frozen=True)
class Files:
    """The files that a path named.

    Parameters
    ----------
    filesystem : FileSystem
        Where they are.
    root : str
        The file itself, the directory that was searched, or the fixed part of the glob.
    infos : tuple of FileInfo
        The files sorted by path, perhaps none.
    """

    filesystem: fs.FileSystem
    root: str
    infos: tuple[fs.FileInfo, ...]


def find_files(path: str, suffixes: tuple[str, ...], options: Mapping[str, Any] | None = None) -> Files:
    """List the files that a path, glob, directory or URL names.

    Parameters
    ----------
    path : str
        A file; a directory, searched with its subdirectories for files of the suffixes; or a glob with `*`, `?`,
        `[...]` and `**`.
    suffixes : tuple of str
        How the file names of a directory must end.
    options : mapping, optional
        Options for fsspec.

    Returns
    -------
    Files
        What is there. Hidden files, below a directory or of a name that starts with `.` or `_`, are left out: they
        belong to someone who still writes.
    """
    wildcard = WILDCARDS.search(path)
    if wildcard:
        base = path[: path.rfind("/", 0, wildcard.start()) + 1]
        filesystem, root = locate(base, options)
        matches = glob_pattern(path[len(base) :])
        found = [info for info in _below(filesystem, root) if matches.fullmatch(_relative(info.path, root))]
        return Files(filesystem, root, tuple(found))
    filesystem, root = locate(path, options)
    info = filesystem.get_file_info(root)
    if info.type is fs.FileType.File:
        return Files(filesystem, info.path, (info,))
    return Files(filesystem, root, tuple(info for info in _below(filesystem, root) if info.path.endswith(suffixes)))


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Translate a glob into a regular expression over paths with `/`.

    Parameters
    ----------
    glob : str
        `*` and `?` stop at `/`, `**/` is any number of directories, `[...]` is a set and `[!...]` its complement.

    Returns
    -------
    Pattern
        To be used with `fullmatch`.

    Examples
    --------
    >>> bool(glob_pattern("**/part-[0-9]*.parquet").fullmatch("2013/05/part-3.parquet"))
    True
    >>> bool(glob_pattern("*.parquet").fullmatch("2013/part-3.parquet"))
    False
    """
    parts = []
    for token in re.findall(r"\*\*/|\*+|\?|\[[^\]]+\]|.", glob, flags=re.DOTALL):
        if token == "**/":
            parts.append("(?:.*/)?")
        elif token == "**":
            parts.append(".*")
        elif token.startswith("*"):
            parts.append("[^/]*")
        elif token == "?":
            parts.append("[^/]")
        elif len(token) > 1:
            parts.append("[" + token[1:-1].replace("\\", "\\\\").replace("!", "^", token[1] == "!") + "]")
        else:
            parts.append(re.escape(token))
    return re.compile("".join(parts), flags=re.DOTALL)


def _below(filesystem: fs.FileSystem, root: str) -> list[fs.FileInfo]:
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    files = [info for info in filesystem.get_file_info(selector) if info.type is fs.FileType.File]
    visible = [info for info in files if not _hidden(_relative(info.path, root))]
    return sorted(visible, key=lambda info: str(info.path))


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/")


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/"))
