"""What is read from source text equals what Python says of the imported functions."""

import inspect
import subprocess
import sys
from typing import get_type_hints

import pytest

from torchmcl import methods, networks
from torchmcl._utils.signatures import REQUIRED, constant, functions
from torchmcl.cli.entry import COMMANDS
from torchmcl.cli.options import method_builders, network_builders
from torchmcl.ensemble import exchange


def same(read, function):
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    assert list(read) == list(parameters)
    for name, (kind, default, _) in read.items():
        expected = parameters[name].default
        assert default == (REQUIRED if expected is inspect.Parameter.empty else expected)
        assert kind == hints[name] or name in ("cut", "task")  # which method and data decide, and no option stands for


@pytest.mark.parametrize("name", methods.names())
def test_methods(name):
    assert sorted(method_builders()) == sorted(methods.names())
    same(functions(f"methods.{name}")[name], methods.function(name))


@pytest.mark.parametrize("name", networks.NAMES)
def test_networks(name):
    assert sorted(network_builders()) == sorted(networks.NAMES)
    same(network_builders()[name], networks.builder(name))


def test_constants():
    assert (constant("ensemble.exchange", "NAMES"), constant("ensemble.feature_fusion", "PRESETS")) == (
        exchange.NAMES,
        exchange.PRESETS,
    )
    with pytest.raises(LookupError):
        constant("ensemble.exchange", "NOTHING")


@pytest.mark.parametrize("line", [[], *([command, "--help"] for command in (*COMMANDS, "study run"))])
def test_help_does_not_import_torch(line):
    words = [word for part in line for word in part.split()] or ["--help"]
    code = (
        "import sys, torchmcl.cli\n"
        f"try: torchmcl.cli.main({words!r})\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'lightning', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: torchmcl" in done.stdout
