"""The machine and the versions that were measured."""

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
    """Describe the processor, threads, versions, commit and command."""
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
    """Return the name of the GPU or the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return cpu_field("model name") or platform.processor() or platform.machine()


def has_bf16() -> bool:
    """Return whether the processor has bf16 instructions; without them, bf16 is emulated and several times slower."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return bool({"avx512_bf16", "amx_bf16", "bf16", "svebf16"} & set(cpu_field("flags").split()))


def cpu_field(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


def commit() -> str:
    """Return the commit of the measured library, with a plus if its files differ from it."""
    package = Path(torchmcl.__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")


def version_in(python: str, package: str) -> str:
    """Return the version of a package in another environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
