"""The command line. The file of a command defines its options in `add_arguments` and calls the library in `run`.

Commands contain no computation of their own. They import torch only when they run, so that `torchmcl --help` stays
fast; the exception is `demo`, which is started with `python -m torchmcl.cli.demo`.
"""

from torchmcl.cli.entry import main

__all__ = ["main"]
