"""URLs of folders, files and databases as errors, logs, commands and pages show them."""

from __future__ import annotations

import re

_USER = r"""(?<!\bgit)(?<!\bgithub)  # of which a repository follows the colon
    (://[^/?#@:\s'"[]*:)
    (?!\d*[?#])  # a port
"""
_NO_PORT = r"""(?!\d+[,;:.)'"]|\d*(?:[\s/]|$))"""
_WORD = r"""(?:[^/\s'"]|['"](?!,))"""  # A quote with a comma ends a URL in a list.
_PASSWORD = re.compile(
    rf"""{_USER}
    (?: {_WORD}+@
      | (?:(?!\d*/)(?:(?!://)[^\s'"@])+  # no port, so a password with a slash, which should be %2F
        | {_NO_PORT}[^/\n@]+  # so a password with a blank, and perhaps quotes
        )@(?:{_WORD}*@)?
    )""",
    re.VERBOSE,
)
_WHOLE = re.compile(
    rf"""\A((?:[\w+.-]+::)*[\w+.-]+){_USER}
    (?: {_NO_PORT}(?:(?!://)[^\n@])+@(?:{_WORD}*@)?
      | (?!\d*(?:/|\Z)) (?!\d+[,;:.)]\s) [^/\n]+?@(?=[^@/\s]*(?:/|\Z))
      | \d [^/\n]+?@(?=[^@/\s]*/)
    )""",
    re.VERBOSE,
)
"""A text that begins with a URL, whose password may have slashes beside blanks.

If the text is a URL as a whole, as far as its host, the password may have blanks behind digits, too.
"""

_ADDRESS = re.compile(r"""\A(?:tcp|tls|ucx|inproc|wss?|https?)://[^/?#@:\s'"[]*:\d+(?:[,;:.)]*\s|['"])""")
"""A text that begins with an address: the digits are its port, whatever follows."""

_TOKEN = re.compile(r"(\bhttps?://)[^/?#@:\s'\"]+@")
_SECRET = r"[^=?&\s/]*(?:password|passwd|secret|token|api_?key|access_?key|account_?key|sig|signature)"
_PARAMETER = re.compile(rf"((?:^|[?&\s]){_SECRET}=)[^&#\s'\"]+", re.IGNORECASE)
_QUOTED = re.compile(
    rf"""((?:^|\s){_SECRET}\s*=\s*)
    (?: '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | \\(['"]).*?\\\2 | (?<=\s)[^\s'"]+ )""",
    re.IGNORECASE | re.VERBOSE,
)
"""As in connection strings of libpq, which may quote values and have blanks beside the sign."""


HIDDEN = "***"
"""Stands for a password."""


def lacks_password(url: str) -> bool:
    """Return whether a URL was shown to people, so that it has no longer the password that it needs.

    Examples
    --------
    >>> lacks_password("sftp://user:***@host/checkpoints"), lacks_password("sftp://user:secret@host/***")
    (True, False)
    """
    other = url.replace(HIDDEN, "hidden")
    return shown_url(url) == url and shown_url(other) != other


def shown_url(text: object) -> str:
    """Return a URL, or a text with URLs, without the passwords and signatures in it.

    Parameters
    ----------
    text : object
        A path, a URL, or an error whose text may contain one.

    Returns
    -------
    str
        The same with ``***`` in place of each password, of what precedes the host of ``https://``, such as a token,
        and of each parameter that is one by its name.

    Examples
    --------
    >>> shown_url("sftp://user:secret@host:22/checkpoints"), shown_url("s3://bucket/a:b@c"), shown_url("/data/x:y@z")
    ('sftp://user:***@host:22/checkpoints', 's3://bucket/a:b@c', '/data/x:y@z')
    >>> shown_url("https://host/flights.parquet?version=1&sig=secret")
    'https://host/flights.parquet?version=1&sig=***'
    """
    given = str(text)
    shown = _PASSWORD.sub(r"\1***@", given)
    if shown == given and not _ADDRESS.match(given):
        shown = _WHOLE.sub(r"\1\2***@", given)
    return _PARAMETER.sub(r"\1***", _QUOTED.sub(r"\1***", _TOKEN.sub(r"\1***@", shown)))
