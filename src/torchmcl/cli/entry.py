"""The entry point: parse the command line, run a command, and turn errors into a one-line message and an exit code."""

import os
import re
import sys
from collections.abc import Container, Sequence
from difflib import get_close_matches
from textwrap import wrap
from types import ModuleType
from typing import Any

from torchmcl import __version__
from torchmcl._utils import imports, plain_yaml
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl._utils.console import say_error
from torchmcl._utils.logs import printed_once
from torchmcl.cli import (
    cache,
    calibrate,
    compare,
    evaluate,
    export,
    figures,
    ls,
    predict,
    report,
    route,
    serve,
    study,
    train,
)
from torchmcl.cli.options import add_import, one_line
from torchmcl.errors import TorchmclError, UsageError

EXAMPLES = """\
Train and use specialist ensembles (multiple choice learning).

Examples:
  train on the embedded digits, evaluate the run and write a report:
    torchmcl train --out runs/first
    torchmcl evaluate runs/first
    torchmcl report runs/first -o report.html
  find out whether specialists help on your images, in one folder per class:
    torchmcl compare --data folder:photos --methods ie,amcl --seeds 6 \\
      --out compare"""
COMMANDS: dict[str, ModuleType] = {
    command.__name__.rpartition(".")[2]: command
    for command in (
        train,
        compare,
        evaluate,
        report,
        figures,
        calibrate,
        route,
        predict,
        export,
        serve,
        study,
        cache,
        ls,
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the command-line arguments; `sys.argv[1:]` by default

    Returns:
        The exit code: 0 on success, 2 after an error, 128 + n if signal n stopped a training run, 1 if the program
        that reads the output has ended.
    """
    given = [normalize_option(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    imports.reset()
    try:
        with keep_freed_memory(), printed_once():
            code = run(run_imports([word for word in given if word != "--debug"]))
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return 1
    except Exception as problem:
        if "--debug" in given:
            raise
        say_error(f"torchmcl: {explained(problem)}")
        return 2


def run_imports(words: list[str]) -> list[str]:
    """Import every file and module named by --import, and return the other arguments.

    The option --import is removed before the other options are parsed, so that it is never stored in a file.
    """
    rest, names = [], []
    end = words.index("--") if "--" in words else len(words)
    following = iter(words[:end])
    for word in following:
        option, _, value = word.partition("=")
        if option != "--import":
            rest.append(word)
            continue
        names.append(value or next(following, ""))
        if not names[-1] or names[-1].startswith("--"):
            raise UsageError("--import needs a Python file or a module. Try: --import my_module.py")
    for name in names:
        imports.load(name)
    return [*rest, *words[end:]]


def explained(problem: Exception) -> str:
    """Describe an error in one line.

    >>> explained(UsageError("Expected 2, got 1."))
    'Expected 2, got 1.'
    >>> explained(PermissionError(13, "Permission denied", "a.txt"))
    "Cannot read or write 'a.txt': Permission denied. Check the path and its permissions."
    >>> explained(RuntimeError("no such kernel"))
    'RuntimeError: no such kernel. Run again with --debug to see the traceback, and report the error.'
    """
    if isinstance(problem, TorchmclError):
        return str(problem)
    if isinstance(problem, OSError):
        where = f"{problem.filename!r}: {problem.strerror}." if problem.filename else f"files: {one_line(problem)}"
        return str(UsageError(f"Cannot read or write {where} Check the path and its permissions."))
    advice = "Run again with --debug to see the traceback, and report the error."
    return str(UsageError(f"{type(problem).__name__}: {one_line(problem)} {advice}"))


def run(arguments: list[str]) -> int:
    """Parse the arguments and call the command."""
    from jsonargparse import ArgumentError

    from torchmcl.cli.help_format import plain_message

    if not arguments:
        arguments = ["--help"]
    parser = build_parser(arguments[:1])
    try:
        options = parser.parse_args(arguments)
    except ArgumentError as problem:
        command = f"{arguments[0]} " if arguments[0] in COMMANDS else ""
        guess = near_option(str(problem), arguments[0])
        raise UsageError(f"{plain_message(problem)}{guess} Try: torchmcl {command}--help") from problem
    command = options["subcommand"]
    if "import" in options[command]:
        raise UsageError("--import is only allowed on the command line. Remove it from the configuration file.")
    return COMMANDS[command].run(options[command].as_dict())


def near_option(problem: str, command: str) -> str:
    """Ask whether the most similar option of a command was meant, if an option is unknown.

    >>> near_option("Unrecognized arguments: --epochz 3", "train")
    ' Did you mean --epochs?'
    """
    from jsonargparse import ArgumentParser

    unknown = re.search(r"[Uu]nrecognized arguments: --(\w+)", problem)
    if unknown is None or command not in COMMANDS:
        return ""
    parser = ArgumentParser()
    COMMANDS[command].add_arguments(parser)
    near = get_close_matches(unknown[1], list(parser.get_defaults().as_dict()), 1)
    return f" Did you mean --{near[0]}?" if near else ""


def build_parser(commands: Container[str] = COMMANDS) -> Any:
    """Build the parser. Options are added only for the given commands, because collecting the options takes time."""
    from jsonargparse import ArgumentParser, get_loader, set_loader
    from yaml import YAMLError

    from torchmcl.cli.help_format import HelpFormatter

    def load(text: str) -> Any:
        plain_yaml.parse(text)
        return get_loader("yaml")(text)  # parses 1e-3 as a number

    set_loader("plain-yaml", load, (YAMLError,))
    strict: dict[str, Any] = {"exit_on_error": False, "allow_abbrev": False}  # `compare --seed 3` does not mean --seeds
    parser = ArgumentParser(
        prog="torchmcl",
        **strict,
        parser_mode="plain-yaml",
        formatter_class=HelpFormatter,  # also used for the subcommands
        usage="torchmcl COMMAND [options]",
        description=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"torchmcl {__version__}")
    subcommands = parser.add_subcommands(required=True)
    for name, command in COMMANDS.items():
        dashes = "Option names can contain dashes or dots instead of underscores, as in --num-nodes and --data.dir."
        text, examples = wrap(f"{command.__doc__} {dashes}"), getattr(command, "EXAMPLES", {})
        shown = [f"  {about}:\n    {in_lines(example)}" for example, about in examples.items()]
        own = ArgumentParser(
            **strict,
            usage=f"torchmcl {name} [options]" if examples else None,
            description="\n".join(["Examples:", *shown, "", *text] if shown else text),
        )
        subcommands.add_subcommand(name, own, help=command.__doc__)
        own.prog = f"torchmcl {name}"  # not "torchmcl [options] name"
        if name in commands:
            command.add_arguments(own)
        add_import(own)
    return parser


def in_lines(command: str) -> str:
    """Break a long command before its last option, so that it fits a narrow terminal and can still be pasted.

    >>> print(in_lines(f"train --data {'x' * 60} --out runs/mine"))
    train --data xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx \\
          --out runs/mine
    """
    if len(command) <= 74:
        return command
    start, dashes, last = command.rpartition(" --")
    return f"{start} \\\n      {dashes.strip()}{last}"


def normalize_option(word: str) -> str:
    """Replace dashes and dots in the name of an option with underscores.

    >>> normalize_option("--num-nodes=2"), normalize_option("--data.dir"), normalize_option("a.b")
    ('--num_nodes=2', '--data_dir', 'a.b')
    """
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{re.sub(r'[-.]', '_', name)}{equals}{value}"
