from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torchmcl.errors import UsageError, known_name

F = TypeVar("F", bound=Callable[..., Any])


class Registry(dict[str, F]):
    """Functions of one kind by name: those of this package and those registered later.

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

    def __init__(self, kind: str, functions: Iterable[F] = (), aliases: Mapping[str, str] | None = None) -> None:
        super().__init__({function.__name__: function for function in functions})
        self.kind = kind
        self.aliases = dict(aliases or {})

    def names(self) -> tuple[str, ...]:
        """Return all names in the order of registration."""
        return tuple(self)

    def find(self, name: str) -> F:
        """Return the function with this name or alias; raise UsageError for an unknown name."""
        name = self.aliases.get(name, name) if isinstance(name, str) else name
        known_name(self.kind, name, self, register=True)
        return self[name]

    def register(self, function: F) -> F:
        """Add a function under its own name; can be a decorator. Raises UsageError if the name is taken."""
        name = function.__name__
        if name in self.aliases or self.setdefault(name, function) is not function:
            raise UsageError(f"The name {name!r} is taken by another {self.kind}. Rename the function.")
        return function
