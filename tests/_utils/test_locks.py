import errno
import fcntl
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from breaking import Child, count_alone, hold
from torchmcl._utils.locks import NO_LOCKS, exclusive_lock
from torchmcl.errors import TorchmclError, UsageError


@pytest.fixture
def lock(tmp_path):
    return tmp_path / ".lock"


@pytest.fixture
def holder(lock, tmp_path):
    """Another process that holds the lock."""
    child = Child(hold, lock, tmp_path / "held")
    while not (tmp_path / "held").exists():
        assert child.process.is_alive(), child.said
        time.sleep(0.01)
    yield child
    child.process.kill()
    child.process.join()


def test_another_process_is_refused_in_one_line(lock, holder):
    with pytest.raises(UsageError) as caught, exclusive_lock(lock, wait=False):
        pass
    assert str(caught.value) == (
        f"{lock.parent} is in use by process {holder.process.pid}. Wait until it ends, or choose another folder."
    )
    assert lock.read_text() == str(holder.process.pid)


def test_a_killed_holder_holds_nothing(lock, holder):
    os.kill(holder.process.pid, signal.SIGKILL)
    holder.process.join()
    assert lock.exists()
    with exclusive_lock(lock, wait=False):
        assert lock.read_text() == str(os.getpid())
    assert not lock.exists()


def test_whoever_waits_gets_it(lock, holder):
    threading.Timer(0.3, holder.process.kill).start()
    with exclusive_lock(lock):
        assert not holder.process.is_alive()


def test_processes_count_one_after_another(lock, tmp_path):
    """Each takes and removes the lock file many times: a waiting process must not lock a file that was removed."""
    (tmp_path / "count").write_text("0")
    children = [Child(count_alone, lock, tmp_path / "count", 200) for _ in range(3)]
    assert [child.end() for child in children] == [0, 0, 0], [child.said for child in children]
    assert (tmp_path / "count").read_text() == "600"
    assert not lock.exists()


def test_threads_exclude_each_other(lock):
    inside, most = 0, 0

    def enter(_):
        nonlocal inside, most
        with exclusive_lock(lock):
            inside += 1
            most = max(most, inside)
            time.sleep(0.001)
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(20)))
    assert most == 1
    with (
        exclusive_lock(lock),
        ThreadPoolExecutor(1) as pool,
        pytest.raises(UsageError, match=f"in use by process {os.getpid()}"),
    ):
        pool.submit(exclusive_lock(lock, wait=False).__enter__).result()


def test_a_fork_that_leaves_the_block_lets_its_parent_hold_it(lock, tmp_path):
    forked = 1
    try:
        with exclusive_lock(lock):
            forked = os.fork()
            if forked:
                os.waitpid(forked, 0)
                assert lock.read_text() == str(os.getpid())
                child = Child(hold, lock, tmp_path / "held", False)
                (line,) = child.errors()
                assert f"in use by process {os.getpid()}" in line
    finally:
        if not forked:
            os._exit(0)
    assert not lock.exists()


@pytest.mark.parametrize("number", sorted(NO_LOCKS))
def test_where_files_cannot_be_locked_nobody_is_refused(number, lock, monkeypatch):
    def unable(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unable)
    with exclusive_lock(lock, wait=False), exclusive_lock(lock, wait=False), exclusive_lock(lock):
        pass
    assert not lock.exists()


def test_a_folder_that_is_none_is_the_system_s_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file") as caught, exclusive_lock(tmp_path / "file" / ".lock"):
        pass
    assert not isinstance(caught.value, TorchmclError)


def test_a_file_removed_between_opening_and_locking_is_not_held(lock, monkeypatch):
    """As on NFS, where a removed file keeps its link until its last holder closes it."""
    really, removed = fcntl.flock, []

    def late(descriptor, operation):
        if operation & fcntl.LOCK_EX and not removed:
            removed.append(lock.rename(lock.with_name(".nfs0001")))
        return really(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with exclusive_lock(lock):
        assert removed
        assert lock.read_text() == str(os.getpid())
        assert not removed[0].read_text()


def test_a_full_disk_takes_the_number_alone(lock, monkeypatch):
    def full(descriptor, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with (
            exclusive_lock(lock),
            ThreadPoolExecutor(1) as pool,
            pytest.raises(UsageError, match="in use by another process"),
        ):
            pool.submit(exclusive_lock(lock, wait=False).__enter__).result()
