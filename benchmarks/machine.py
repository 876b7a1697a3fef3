"""What the numbers were measured on, and of what."""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import torchmcl


def describe(threads: int) -> dict[str, Any]:
    """Processor, threads, memory, versions, commit and command."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "processor": processor(),
        "threads": threads,
        "bf16": has_bf16(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": version("lightning"),
    }


def processor() -> str:
    """Its name, or a GPU's."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return cpu_field("model name") or platform.processor() or platform.machine()


def has_bf16() -> bool:
    """Whether there are instructions for bf16; where there are none it is emulated, several times slower."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return bool({"avx512_bf16", "amx_bf16", "bf16", "svebf16"} & set(cpu_field("flags").split()))


def cpu_field(name: str) -> str:
    """A line of /proc/cpuinfo, of the first processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


def commit() -> str:
    """The commit of the library that is measured, with a plus where its files differ from it."""
    package = Path(torchmcl.__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")


def version_in(python: str, package: str) -> str:
    """The version of a package in another environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
