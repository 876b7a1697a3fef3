import subprocess
import sys

import pytest

from torchmcl._utils.memory_limit import available_memory, check_memory
from torchmcl.errors import UsageError


def test_there_is_some():
    assert 2**28 < available_memory() <= 2**63
    check_memory("little", 2**20)
    with pytest.raises(UsageError, match=r"Not enough memory for much: .* GB needed, .* GB available\."):
        check_memory("much", available_memory() + 1)


def test_a_limit_on_the_process_counts():
    half = available_memory() // 2
    limited = f"import resource as r; r.setrlimit(r.RLIMIT_AS, ({half}, {half}))"
    script = f"{limited}; from torchmcl._utils.memory_limit import available_memory; print(available_memory())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == half
