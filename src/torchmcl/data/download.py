import logging
import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from torchmcl._utils import atomic
from torchmcl._utils.logs import VERBOSE, muted, report
from torchmcl.data.find import cache, data_folders, find, not_found
from torchmcl.errors import DamagedFileError, DiskFullError, TorchmclError, UsageError


@dataclass(frozen=True)
class RemoteFile:
    """The URL and MD5 checksum of a published file or archive, and its maximum size, both packed and unpacked."""

    url: str
    md5: str
    max_bytes: int

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.url.rsplit("/", 1)[1]


LOGGER = logging.getLogger(__name__)
_KRIZ = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "https://ufldl.stanford.edu/housenumbers/"
_MB = 10**6
SCHEME = "https"  # required for every URL and redirect

# Maps the name of a file or folder in a data folder to its source.
SOURCES = {
    "cifar-10-batches-bin": RemoteFile(_KRIZ + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 200 * _MB),
    "cifar-10-batches-py": RemoteFile(_KRIZ + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 200 * _MB),
    "cifar-100-binary": RemoteFile(_KRIZ + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 200 * _MB),
    "svhn/train_32x32.mat": RemoteFile(_SVHN + "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 300 * _MB),
    "svhn/test_32x32.mat": RemoteFile(_SVHN + "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 300 * _MB),
    "tiny-imagenet-200": RemoteFile(
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 1000 * _MB
    ),
}


def obtain(names: Sequence[str], directory: str | os.PathLike[str] | None = None) -> Path:
    """Find one of the files or folders in `names`, or else unpack or download it.

    If a data folder contains the archive instead, the archive is unpacked; its checksum must match the published one.
    """
    if (path := find(names, directory)) is not None:
        return path
    known = {name: SOURCES[name] for name in names if name in SOURCES}
    if not known:
        raise not_found(names, directory, "no download is available")
    for name, source in known.items():
        for folder in data_folders(directory):
            if (folder / source.file).is_file():
                _check_md5(folder / source.file, source)
                return _unpack_to(folder / source.file, cache(), name, source)
    name, source = next(iter(known.items()))
    try:
        with atomic.report_full_disk(cache() / name):
            file = _download(source, cache() / Path(name).parent)
    except TorchmclError:
        raise
    except (OSError, ValueError) as error:  # no network, no permission to write, or a wrong checksum
        what = "wrong checksum" if isinstance(error, ValueError) else type(error).__name__
        files = dict.fromkeys([*names, *(each.file for each in known.values())])
        reason = f"downloading {source.url} (md5 {source.md5}) failed ({what})"
        raise not_found(list(files), directory, reason) from error
    return _unpack_to(file, cache(), name, source)


def _download(source: RemoteFile, folder: Path) -> Path:
    import pooch

    if urlsplit(source.url).scheme != SCHEME:
        raise UsageError(f"Expected an {SCHEME} URL, got {source.url}.")

    responses: list[Any] = []

    def check_response(response: Any, *_: Any, **__: Any) -> None:
        """Check a response before it is read or its redirect is followed."""
        responses.append(response)
        onward = urljoin(response.url, response.headers.get("location", ""))
        announced = response.headers.get("content-length", "0")
        if response.is_redirect and urlsplit(onward).scheme != SCHEME:
            raise UsageError(
                f"The URL {source.url} redirects to {onward}, which does not use {SCHEME}. Download the file manually."
            )
        if not announced.isdecimal() or int(announced) > source.max_bytes:
            raise UsageError(f"Expected at most {source.max_bytes} bytes from {source.url}, got {announced}.")

    bar = VERBOSE.get() and sys.stderr.isatty() and find_spec("tqdm") is not None
    fetch = pooch.HTTPDownloader(progressbar=bar, timeout=30, hooks={"response": check_response})

    def limited(url: str, path: str, *_: Any) -> None:
        report(LOGGER, f"Downloading {url} to {folder}.")
        try:
            with open(path, "wb") as file:
                fetch(url, _LimitedFile(file, source), None)
        finally:
            for response in responses:
                response.close()

    with muted(pooch.get_logger()):  # this logger has no parent and writes to standard error
        return Path(pooch.retrieve(source.url, f"md5:{source.md5}", source.file, folder, downloader=limited))


class _LimitedFile:
    """A file that accepts at most `source.max_bytes` bytes, regardless of the Content-Length header."""

    def __init__(self, file: IO[bytes], source: RemoteFile) -> None:
        self.file, self.source, self.left = file, source, source.max_bytes

    def write(self, chunk: bytes) -> int:
        self.left -= len(chunk)
        if self.left < 0:
            raise UsageError(f"Expected at most {self.source.max_bytes} bytes from {self.source.url}, got more.")
        return self.file.write(chunk)

    def flush(self) -> None:
        self.file.flush()


def _check_md5(file: Path, source: RemoteFile) -> None:
    import pooch

    if pooch.file_hash(str(file), alg="md5") != source.md5:
        raise DamagedFileError(f"The MD5 checksum of {file} is not {source.md5}. Download it again from {source.url}.")


def _unpack_to(file: Path, folder: Path, name: str, source: RemoteFile) -> Path:
    """Unpack an archive to a temporary folder and move the result, so that no process ever sees a partial folder."""
    if not file.name.endswith((".tar.gz", ".zip")):
        return file
    target = folder / name
    try:
        atomic.make_folder(folder)
        with atomic.report_full_disk(target), tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as draft:
            unpack(file, Path(draft), source.max_bytes)
            if not (Path(draft) / name).is_dir():
                raise UsageError(f"There is no folder {name} in {file}. Download the file again from {source.url}.")
            (Path(draft) / name).rename(target)
    except OSError as error:
        if not target.exists():  # another process may have unpacked it first
            if isinstance(error, DiskFullError):
                raise
            raise UsageError(f"Cannot unpack {file} into {folder}: {error}.") from error
    return target


def unpack(archive: Path, to: Path, max_bytes: int) -> None:
    """Unpack a tar or zip archive into `to`; raise UsageError if its content is unsafe or larger than `max_bytes`."""
    try:
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(to, _checked_members(archive, tar, max_bytes), filter="data")
        else:
            with zipfile.ZipFile(archive) as pack:
                if sum(member.file_size for member in pack.infolist()) > max_bytes:
                    raise _too_large(archive, max_bytes)
                for name in pack.namelist():
                    if not (to / name).resolve().is_relative_to(to.resolve()):
                        raise UsageError(
                            f"The archive {archive} is not safe: {name!r} would be written outside its folder."
                        )
                pack.extractall(to)
    except (TorchmclError, OSError):
        raise
    except Exception as error:  # tarfile and zipfile raise many kinds of exceptions for damaged bytes
        raise DamagedFileError(f"The archive {archive} is damaged: {error}. Download it again.") from error


def _checked_members(archive: Path, tar: tarfile.TarFile, max_bytes: int) -> list[tarfile.TarInfo]:
    """Return the members; raise UsageError as soon as one is unsafe or their total size exceeds `max_bytes`."""
    members, total = [], 0
    for member in tar:
        total += member.size
        if total > max_bytes:
            raise _too_large(archive, max_bytes)
        if not (member.isfile() or member.isdir()):  # a link could point outside the folder once the folder is moved
            raise UsageError(f"The archive {archive} is not safe: it contains a link or a device.")
        members.append(member)
    return members


def _too_large(archive: Path, max_bytes: int) -> UsageError:
    return UsageError(f"The archive {archive} is not safe: it would unpack to more than {max_bytes} bytes.")
