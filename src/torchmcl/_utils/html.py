"""Elements of a page: what is not marked as HTML is text, and escaped."""

from html import escape
from typing import Any

VOID = ("img", "input", "meta", "br", "hr", "link")


class Markup(str):
    """Text that is HTML already. All other text is escaped wherever it becomes part of a page."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element; `class_` is its class, `aria_label` its aria-label; what is None or False is left out.

    >>> tag("p", "1 < 2 ", tag("b", "so"), class_="note")
    '<p class="note">1 &lt; 2 <b>so</b></p>'
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{said}>" if name in VOID else f"<{name}{said}>{join(*children)}</{name}>")


def join(*children: Any) -> Markup:
    """Parts beside each other, lists of them too, escaped unless they are HTML already; None is nothing.

    >>> join("a & b", None, [tag("br"), 3])
    'a &amp; b<br>3'
    """
    return Markup("".join(_text(child) for child in children))


def _text(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return join(*child)
    return escape(str(child))
