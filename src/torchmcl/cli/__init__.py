"""The command line: one command per file. Commands parse arguments and call the library; nothing is computed here.

`main` runs a command. No module of this folder imports torch before a command is called.
"""

from torchmcl.cli.entry import main

__all__ = ["main"]
