import sys
from importlib.metadata import PackageNotFoundError, version
from platform import python_version


def versions(*others: str) -> dict[str, str]:
    """Return the versions of torchmcl, torch, Python and other installed packages, which results depend on.

    >>> list(versions("a-missing-package"))
    ['torchmcl', 'torch', 'python']
    """
    own: str = sys.modules["torchmcl"].__version__
    found = {"torchmcl": own, "torch": version("torch"), "python": python_version()}
    for name in others:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
