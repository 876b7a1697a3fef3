"""The command line. Each command has a file that defines options in `add_arguments` and calls the library in `run`.

Commands contain no computation of their own. They import torch only when they run, so that `torchmcl --help` stays
fast. The exception is `demo`, which imports torch at once and is started with `python -m torchmcl.cli.demo`.
"""

from torchmcl.cli.entry import main

__all__ = ["main"]
