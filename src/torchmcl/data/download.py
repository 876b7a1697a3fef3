import logging
import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from torchmcl._utils import atomic
from torchmcl._utils.logs import VERBOSE, emit, muted
from torchmcl.data.find import cache, find, missing, places
from torchmcl.errors import DamagedFileError, DiskFullError, TorchmclError, UsageError


@dataclass(frozen=True)
class RemoteFile:
    """Where a file or archive is published, its checksum, and the most bytes it may have, unpacked or not."""

    url: str
    md5: str
    most: int

    @property
    def file(self) -> str:
        """The name it is published by."""
        return self.url.rsplit("/", 1)[1]


LOGGER = logging.getLogger(__name__)
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "https://ufldl.stanford.edu/housenumbers/"
_MB = 10**6
SCHEME = "https"  # of every address, and of whatever it leads to

# What each makes, in a place of data -> its source.
SOURCES = {
    "cifar-10-batches-bin": RemoteFile(
        _CIFAR + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 200 * _MB
    ),
    "cifar-10-batches-py": RemoteFile(_CIFAR + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 200 * _MB),
    "cifar-100-binary": RemoteFile(_CIFAR + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 200 * _MB),
    "svhn/train_32x32.mat": RemoteFile(_SVHN + "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 300 * _MB),
    "svhn/test_32x32.mat": RemoteFile(_SVHN + "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 300 * _MB),
    "tiny-imagenet-200": RemoteFile(
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 1000 * _MB
    ),
}


def obtain(names: Sequence[str], directory: str | os.PathLike[str] | None = None) -> Path:
    """The first of these files or folders that is there; else what can be had of them from an archive or the network.

    An archive that lies in one of the places is unpacked, downloaded or not, if its checksum is the published one.
    """
    if (found := find(names, directory)) is not None:
        return found
    known = {name: SOURCES[name] for name in names if name in SOURCES}
    if not known:
        raise missing(names, directory, "it cannot be downloaded.")
    for name, source in known.items():
        for place in places(directory):
            if (place / source.file).is_file():
                _checked(place / source.file, source)
                return _unpacked(place / source.file, cache(), name, source)
    name, source = next(iter(known.items()))
    try:
        with atomic.report_full_disk(cache() / name):
            file = _downloaded(source, cache() / Path(name).parent)
    except TorchmclError:
        raise
    except (OSError, ValueError) as error:  # no network, not allowed to write, another checksum
        what = "its checksum is not the published one" if isinstance(error, ValueError) else type(error).__name__
        reason = f"downloading {source.url} (md5 {source.md5}) failed ({what})."
        files = [each.file for each in known.values()]
        raise missing(list(dict.fromkeys([*names, *files])), directory, reason) from error
    return _unpacked(file, cache(), name, source)


def _downloaded(source: RemoteFile, folder: Path) -> Path:
    import pooch

    if urlsplit(source.url).scheme != SCHEME:
        raise UsageError(f"Expected an address of {SCHEME}, got {source.url}.")

    answers: list[Any] = []

    def looked_at(response: Any, *_: Any, **__: Any) -> None:
        """Before an answer is read or followed."""
        answers.append(response)
        onward = urljoin(response.url, response.headers.get("location", ""))
        announced = response.headers.get("content-length", "0")
        if response.is_redirect and urlsplit(onward).scheme != SCHEME:
            raise UsageError(f"Expected {source.url} to stay with {SCHEME}, it leads to {onward}.")
        if not announced.isdecimal() or int(announced) > source.most:
            raise UsageError(f"Expected at most {source.most} bytes from {source.url}, it announces more.")

    bar = VERBOSE.get() and sys.stderr.isatty() and find_spec("tqdm") is not None
    fetch = pooch.HTTPDownloader(progressbar=bar, timeout=30, hooks={"response": looked_at})

    def counted(url: str, path: str, *_: Any) -> None:
        show = partial(print, file=sys.stderr) if VERBOSE.get() else None
        emit(LOGGER, logging.INFO, f"Downloading {url} into {folder}.", show)
        try:
            with open(path, "wb") as file:
                fetch(url, _Counted(file, source), None)
        finally:
            for response in answers:
                response.close()

    with muted(pooch.get_logger()):  # which is outside of the hierarchy and writes to standard error
        return Path(pooch.retrieve(source.url, f"md5:{source.md5}", source.file, folder, downloader=counted))


class _Counted:
    """A file that takes no more than a source may have, whatever was announced."""

    def __init__(self, file: IO[bytes], source: RemoteFile) -> None:
        self.file, self.source, self.left = file, source, source.most

    def write(self, chunk: bytes) -> int:
        self.left -= len(chunk)
        if self.left < 0:
            raise UsageError(f"Expected at most {self.source.most} bytes from {self.source.url}, got more.")
        return self.file.write(chunk)

    def flush(self) -> None:
        self.file.flush()


def _checked(file: Path, source: RemoteFile) -> None:
    import pooch

    if pooch.file_hash(str(file), alg="md5") != source.md5:
        raise DamagedFileError(f"Expected {file} with md5 {source.md5}, got another. Get it again from {source.url}.")


def _unpacked(file: Path, place: Path, name: str, source: RemoteFile) -> Path:
    """Unpack an archive beside its final place, then rename: whoever looks for it finds all of it or nothing."""
    if not file.name.endswith((".tar.gz", ".zip")):
        return file
    try:
        atomic.make_folder(place)
        with (
            atomic.report_full_disk(place / name),
            tempfile.TemporaryDirectory(prefix=".unpacking-", dir=place) as draft,
        ):
            unpack(file, Path(draft), source.most)
            if not (Path(draft) / name).is_dir():
                raise UsageError(f"Expected {name} in {file}, found none.")
            (Path(draft) / name).rename(place / name)
    except OSError as error:
        if not (place / name).exists():  # unless another process was faster
            if isinstance(error, DiskFullError):
                raise
            raise UsageError(f"Expected to unpack {file} into {place}, could not: {_line(error)}.") from error
    return place / name


def unpack(archive: Path, to: Path, most: int) -> None:
    """Unpack a tar or zip archive of at most `most` bytes; no member may leave the folder."""
    try:
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive) as tar:
                members = _bounded(archive, tar, most)
                tar.extractall(to, members, filter="data")
        else:
            with zipfile.ZipFile(archive) as pack:
                if sum(member.file_size for member in pack.infolist()) > most:
                    raise _too_large(archive, most)
                for name in pack.namelist():
                    if not (to / name).resolve().is_relative_to(to.resolve()):
                        raise UsageError(f"Expected {archive} to stay in its folder, {name!r} would leave it.")
                pack.extractall(to)
    except (TorchmclError, OSError):
        raise
    except Exception as error:  # damaged bytes make tar and zip raise anything
        raise DamagedFileError(f"Expected a whole archive, got {archive}: {_line(error)}.") from error


def _bounded(archive: Path, tar: tarfile.TarFile, most: int) -> list[tarfile.TarInfo]:
    """The members, counted one by one, for each claims its size before it comes."""
    members, total = [], 0
    for member in tar:
        total += member.size
        if total > most:
            raise _too_large(archive, most)
        if not (member.isfile() or member.isdir()):  # a link may leave the folder once that has its final name
            raise UsageError(f"Expected a whole archive of files and folders, got {archive}, with a link or a device.")
        members.append(member)
    return members


def _too_large(archive: Path, most: int) -> UsageError:
    return UsageError(f"Expected {archive} to unpack to at most {most} bytes, it would to more.")


def _line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
