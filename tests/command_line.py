"""The command line in this process."""

import shlex

from torchmcl import cli


def torchmcl(line, capsys):
    """Run a command line -> exit code, standard output, standard error."""
    capsys.readouterr()
    try:
        code = cli.main(shlex.split(line))
    except SystemExit as leaving:
        code = leaving.code or 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err
