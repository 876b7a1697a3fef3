"""Shows doctests in docstrings as code, because Markdown treats a line that begins with >>> as a quotation."""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fence each paragraph that begins with >>>."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the doctests in the docstring of an object."""
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(fenced, paragraphs))


def fenced(paragraph: str) -> str:
    """Return a paragraph, fenced as code if it is a doctest.

    >>> print(fenced(">>> 1 + 1\\n2"))
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return f"```pycon\n{paragraph.strip()}\n```" if paragraph.lstrip().startswith(">>>") else paragraph
