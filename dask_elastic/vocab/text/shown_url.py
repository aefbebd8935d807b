"""URLs of folders, files and databases as errors, logs, commands and pages show them."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(://[^/@:\s'\"]*:)[^/\s'\"]+@")


def shown_url(text: object) -> str:
    """Return a URL, or a text with URLs, without the passwords in it.

    Parameters
    ----------
    text : object
        A path, a URL, or an error whose text may contain one.

    Returns
    -------
    str
        The same with ``***`` in place of each password.

    Examples
    --------
    >>> shown_url("sftp://user:secret@host:22/checkpoints"), shown_url("s3://bucket/a:b@c"), shown_url("/data/x:y@z")
    ('sftp://user:***@host:22/checkpoints', 's3://bucket/a:b@c', '/data/x:y@z')
    """
    return _PASSWORD.sub(r"\1***@", str(text))
