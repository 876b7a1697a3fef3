from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import repr as shown

LONGEST = 1000  # characters of an error


class UsageError(ValueError):
    """Something was asked for that cannot be done: one line of what was expected, what came, what to do next.

    Every error that torchmcl raises on purpose is one of these, so that a program can tell them from defects. What it
    quotes may be anything: it is kept to one line of at most 1,000 characters that every terminal can show.

    >>> raise UsageError("Expected 1 <= k <= 5 members, got k=7.")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected 1 <= k <= 5 members, got k=7.
    """

    def __init__(self, message: object = "") -> None:
        line = " ".join(str(message).split())
        line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST - 2]} …")


def known_name(kind: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is none of `names`, and say which was nearly meant.

    >>> known_name("fruit", "aple", ["apple", "pear"])
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected a fruit out of apple, pear, got 'aple'. Did you mean 'apple'?
    """
    names = list(names)
    if not isinstance(name, str) or name not in names:
        near = get_close_matches(name[:100].lower(), names, n=1) if isinstance(name, str) else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"Expected a {kind} out of {', '.join(names)}, got {shown(name)}.{hint}")
