from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment(package: str) -> Environment:
    """Return a Jinja environment for the HTML templates in a package's folder `templates`; inserted values are escaped.

    >>> environment("torchmcl.reporting").from_string("<p>{{ text }}</p>").render(text="1 < 2")
    '<p>1 &lt; 2</p>'
    """
    loader, undefined = PackageLoader(package), StrictUndefined
    return Environment(loader=loader, autoescape=True, undefined=undefined, trim_blocks=True, lstrip_blocks=True)


def shared(name: str) -> str:
    """Return the text of a file that several pages use.

    >>> "function sorted" in shared("sort.js")
    True
    """
    return (files("torchmcl._utils") / "assets" / name).read_text(encoding="utf-8")
