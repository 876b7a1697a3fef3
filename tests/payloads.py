"""What a malicious file holds: each of these, opened by a reader that trusts it, leaves a mark on the disk."""

import builtins
import os
import subprocess
from pathlib import Path


class Harm:
    """Pickled, it is a call."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def harms(mark: Path) -> dict[str, Harm]:
    code = f"open({str(mark)!r}, 'w').close()"
    return {
        "os.system": Harm(os.system, f"touch '{mark}'"),
        "exec": Harm(builtins.exec, code),
        "eval": Harm(builtins.eval, code),
        "touch": Harm(os.mknod, str(mark)),
        "subprocess": Harm(subprocess.call, ["touch", str(mark)]),
        "Path.touch": Harm(Path.touch, mark),
    }


def opcodes(mark: Path) -> dict[str, bytes]:
    """The same by the several ways in which a pickle can ask for a call."""
    command = f"touch '{mark}'".encode()
    return {
        "REDUCE": b"cos\nsystem\n(S" + repr(command.decode()).encode() + b"\ntR.",
        "INST": b"(S" + repr(command.decode()).encode() + b"\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS" + repr(command.decode()).encode() + b"\no.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(command)]) + command + b"\x85R.",
    }


YAML = {
    "apply": "!!python/object/apply:os.system [\"touch '{mark}'\"]",
    "call": "!!python/object/apply:subprocess.call [[touch, '{mark}']]",
    "nested": "data: digits\nmembers: !!python/object/apply:os.system [\"touch '{mark}'\"]",
    "exec": "!!python/object/apply:builtins.exec [\"open('{mark}', 'w').close()\"]",
}
