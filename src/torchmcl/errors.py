from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """Something was asked for that cannot be done: one line of what was expected, what came, what to do next.

    Every error that torchmcl raises on purpose is one of these, so that a program can tell them from defects.

    >>> raise UsageError("Expected 1 <= k <= 5 members, got k=7.")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected 1 <= k <= 5 members, got k=7.
    """


def known_name(kind: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is none of `names`, and say which was nearly meant.

    >>> known_name("fruit", "aple", ["apple", "pear"])
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected a fruit out of apple, pear, got 'aple'. Did you mean 'apple'?
    """
    names = list(names)
    if name not in names:
        near = get_close_matches(str(name).lower(), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"Expected a {kind} out of {', '.join(names)}, got {name!r}.{hint}")
