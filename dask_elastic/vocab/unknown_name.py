"""The error for a name that a public namespace lacks, with the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence


def unknown_name(
    namespace: str,
    name: str,
    names: Sequence[str],
    synonyms: Mapping[str, str],
    missing: Mapping[str, Sequence[str]] | None = None,
) -> AttributeError:
    """Return the error for a name that a namespace lacks.

    Parameters
    ----------
    namespace : str
        The namespace as users write it, such as "agg".
    name : str
        The name that it lacks.
    names : sequence of str
        The names that it has.
    synonyms : mapping of str to str
        Names that other libraries use, in lower case without underscores, and what they are called here.
    missing : mapping of str to sequence of str, optional
        What to use instead, and the names that other libraries use, in the same form, of things that do not exist here.

    Returns
    -------
    AttributeError
        The error; it suggests a name, says what to use instead, or lists the names that exist.

    Examples
    --------
    >>> unknown_name("agg", "Avg", ["Mean", "Sum"], {"avg": "Mean"})
    AttributeError("agg has no 'Avg'; did you mean agg.Mean?")
    >>> unknown_name("agg", "Median", ["Mean", "Sum"], {}, {"write an agg.custom(...)": ["median"]})
    AttributeError("agg has no 'Median' yet; write an agg.custom(...)")
    """
    plain = _plain(name)
    known = {_plain(own): own for own in names}
    for instead, absent in (missing or {}).items():
        if plain in absent:
            return AttributeError(f"{namespace} has no {name!r} yet; {instead}")
    close = difflib.get_close_matches(plain, [*known, *synonyms], n=1, cutoff=0.75)
    meant = known.get(plain) or synonyms.get(plain) or next((known.get(one) or synonyms[one] for one in close), None)
    hint = f"it has {', '.join(names)}" if meant is None else f"did you mean {namespace}.{meant}?"
    return AttributeError(f"{namespace} has no {name!r}; {hint}")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
