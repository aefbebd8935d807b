"""URLs of folders, files and databases as errors, logs, commands and pages show them."""

from __future__ import annotations

import re

_PASSWORD = re.compile(
    r"""(?<!\bgit)(?<!\bgithub)  # of which a repository follows the colon
    (://[^/@:\s'"[]*:)
    (?: (?:[^/\s'"]|['"](?!,))+  # a quote with a comma ends a URL in a list
      | (?!\d*/)(?:(?!://)[^\s'"])+?  # no port, so a password with a slash, which should be %2F
    )@""",
    re.VERBOSE,
)
_PARAMETER = re.compile(
    r"((?:^|[?&\s])[^=?&\s/]*(?:password|passwd|secret|token|api_?key|access_?key|account_?key|sig|signature)=)"
    r"[^&#\s'\"]+",
    re.IGNORECASE,
)


def shown_url(text: object) -> str:
    """Return a URL, or a text with URLs, without the passwords and signatures in it.

    Parameters
    ----------
    text : object
        A path, a URL, or an error whose text may contain one.

    Returns
    -------
    str
        The same with ``***`` in place of each password, and of each parameter that is one by its name.

    Examples
    --------
    >>> shown_url("sftp://user:secret@host:22/checkpoints"), shown_url("s3://bucket/a:b@c"), shown_url("/data/x:y@z")
    ('sftp://user:***@host:22/checkpoints', 's3://bucket/a:b@c', '/data/x:y@z')
    >>> shown_url("https://host/flights.parquet?version=1&sig=secret")
    'https://host/flights.parquet?version=1&sig=***'
    """
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1***@", str(text)))
