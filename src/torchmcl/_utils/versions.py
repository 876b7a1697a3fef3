import sys
from importlib.metadata import PackageNotFoundError, version
from platform import python_version


def versions(*others: str) -> dict[str, str]:
    """What results depend on: torchmcl, torch and Python, and other packages where they are installed.

    >>> list(versions("a-package-that-is-not-there"))
    ['torchmcl', 'torch', 'python']
    """
    own: str = sys.modules["torchmcl"].__version__  # loaded, for this is part of it
    found = {"torchmcl": own, "torch": version("torch"), "python": python_version()}
    for name in others:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
