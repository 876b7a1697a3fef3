"""The layout of help texts, and the messages of the parser in plain words."""

import re
from argparse import SUPPRESS, Action, RawDescriptionHelpFormatter
from collections.abc import Callable

from jsonargparse import DefaultHelpFormatter

VALUES = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}


class HelpFormatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Show the default of an option only if it has one, and its type not at all."""

    def _get_help_string(self, action: Action) -> str:
        flag = action.default in (None, False, SUPPRESS) or not action.option_strings
        return (action.help or "") + ("" if flag or "%(default)" in (action.help or "") else " (default: %(default)s)")

    def _metavar_formatter(self, action: Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        shown = super()._metavar_formatter(action, default_metavar)
        return lambda count: tuple(one and one.replace(",null", "") for one in shown(count))


def plain_message(problem: object) -> str:
    """Return a message of the parser in one line, without Python types.

    >>> plain_message('Parser key "members": Expected a <class \\'int\\'>. Got value: x')
    "Expected a whole number for --members, got 'x'."
    >>> plain_message("unrecognized arguments: --widht 4")
    'unrecognized arguments: --widht 4.'
    >>> plain_message("the following arguments are required: predict.run, predict.files")
    'Missing: RUN FILES.'
    """
    text = " ".join(str(problem).split()).rstrip(".")
    if required := re.fullmatch(r"the following arguments are required: (.*)", text):
        return f"Missing: {' '.join(name.rpartition('.')[2].upper() for name in required[1].split(', '))}."
    found = re.fullmatch(r'Parser key "(\w+)": (.*?)\.? (?:Got|Given) value: (.*)', text)
    kinds = [] if found is None else re.findall(r"<class '(\w+)'>|Literal\[(.*?)\]", found[2].split(" Errors: ")[0])
    names = [[VALUES.get(kind, "")] if kind else literals.replace("'", "").split(", ") for kind, literals in kinds]
    expected = list(dict.fromkeys(name for several in names for name in several if name))
    if found is None or not expected:
        return f"{text}."
    choice = f"{', '.join(expected[:-1])} or {expected[-1]}" if expected[1:] else expected[0]
    return f"Expected {choice} for --{found[1]}, got {found[3]!r}."
