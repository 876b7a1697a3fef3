from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """An immutable, hashable dictionary for frozen configurations.

    >>> options = FrozenDict(k=1)
    >>> options["k"] = 2
    Traceback (most recent call last):
        ...
    TypeError: A configuration cannot be changed. Create another with dataclasses.replace.
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("A configuration cannot be changed. Create another with dataclasses.replace.")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items(), key=lambda item: item[0])))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)
