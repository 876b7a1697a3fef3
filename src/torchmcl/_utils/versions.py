import sys
from importlib.metadata import PackageNotFoundError, version
from platform import python_version


def versions(*others: str) -> dict[str, str]:
    """Return the versions of the packages that affect results: torchmcl, torch, Python, and `others` if installed.

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
