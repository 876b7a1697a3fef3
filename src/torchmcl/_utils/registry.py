from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torchmcl.errors import UsageError, known_name

F = TypeVar("F", bound=Callable[..., Any])


class Registry(dict[str, F]):
    """A mapping from names to functions of one kind, both those of this package and those registered later.

    Args:
        kind: the word for these functions in error messages, such as "method"
        functions: the functions of this package
        aliases: a mapping from the aliases that `find` accepts to names
        reserved: names that are defined elsewhere and cannot be registered

    >>> def apple(): ...
    >>> def pear(): ...
    >>> fruits = Registry("fruit", [apple])
    >>> fruits.register(pear) is pear, fruits.names()
    (True, ('apple', 'pear'))
    >>> fruits.find("aple")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Unknown fruit 'aple'. Did you mean 'apple'? Available: apple, pear. To use your own,
        import the file that registers it: --import FILE.
    """

    def __init__(
        self,
        kind: str,
        functions: Iterable[F] = (),
        *,
        aliases: Mapping[str, str] | None = None,
        reserved: Iterable[str] = (),
    ) -> None:
        super().__init__({function.__name__: function for function in functions})
        self.kind = kind
        self.aliases = dict(aliases or {})
        self.reserved = {*self.aliases, *reserved}

    def names(self) -> tuple[str, ...]:
        """Return all names in the order of registration."""
        return tuple(self)

    def find(self, name: str) -> F:
        """Return the function with this name or alias; raise UsageError for an unknown name."""
        known_name(self.kind, name, (*self, *self.aliases), register=True)
        return self[self.aliases.get(name, name)]

    def register(self, function: F) -> F:
        """A decorator that adds a function under its own name; raises UsageError if the name is taken."""
        name = function.__name__
        if name in self.reserved or self.setdefault(name, function) is not function:
            raise UsageError(f"The name {name!r} is taken by another {self.kind}. Rename the function.")
        return function
