"""Finding files by path, glob or URL, on the local file system or through fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        Options for fsspec. If given, fsspec also opens the URLs that PyArrow supports itself.

    Returns
    -------
    tuple of FileSystem and str
        PyArrow's own file system if it supports the URL, else fsspec's.

    Raises
    ------
    ValueError
        When neither supports the URL.
    """
    if "://" not in path:
        return fs.LocalFileSystem(), path
    if options is None:
        try:
            filesystem, inner = fs.FileSystem.from_uri(path)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass  # PyArrow does not support this scheme; fsspec may, and raises a ValueError if not.
        else:
            return filesystem, inner
    import fsspec

    other, inner = fsspec.core.url_to_fs(path, **(options or {}))
    return fs.PyFileSystem(fs.FSSpecHandler(other)), inner


@dataclass(frozen=True)
class Files:
    """The files found under a path.

    Parameters
    ----------
    filesystem : FileSystem
        The file system that holds them.
    root : str
        The file itself, the directory searched, or the part of the glob before its first wildcard.
    infos : tuple of FileInfo
        The files, sorted by path; may be empty.
    """

    filesystem: fs.FileSystem
    root: str
    infos: tuple[fs.FileInfo, ...]


def find_files(path: str, suffixes: tuple[str, ...], options: Mapping[str, Any] | None = None) -> Files:
    """List the files that a path, glob, directory or URL names.

    Parameters
    ----------
    path : str
        A file; a directory, searched recursively for files with one of the suffixes; or a glob with `*`, `?`, `[...]`
        and `**`.
    suffixes : tuple of str
        Suffixes that file names must have when `path` is a directory.
    options : mapping, optional
        Options for fsspec.

    Returns
    -------
    Files
        The files found, without those whose name, or the name of a directory between `path` and them, starts with `.`
        or `_`: by convention such files are still being written.
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
        `*` and `?` do not match `/`, `**/` matches any number of directories, `[...]` is a set of characters and
        `[!...]` its complement.

    Returns
    -------
    Pattern
        The expression, for `fullmatch`.

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
