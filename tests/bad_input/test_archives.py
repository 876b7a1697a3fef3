"""Archives whose entries would leave their folder, link, collide or lie: nothing is ever written elsewhere."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outcomes import cases, ends_well
from torchmcl.data import download
from torchmcl.data.download import RemoteFile, obtain

pytestmark = pytest.mark.slow

NAMES = st.one_of(
    st.sampled_from(["set/a", "set/b/c", "set", "set/", "./set/a", "set/a/b", "set//a", "set/ "]),
    st.sampled_from(
        ["../a", "set/../../a", "/etc/torchmcl-was-here", "set/../a", "..", ".", "", "//a", "set/..", "~/a"]
    ),
    st.sampled_from(
        ["..\\a", "C:\\a", "set\\..\\..\\a", "set/" + "a" * 300, "set/\x01", "set/\u202e", "a" * 90 + "/" + "b" * 90]
    ),
)
LINKS = ["..", "../..", "/etc", "/", "a", "set/a", "../set", ".", "loop", "../../../../../../etc/passwd"]
TYPES = [tarfile.REGTYPE] * 4 + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
ENTRIES = st.lists(st.tuples(NAMES, st.sampled_from(TYPES), st.sampled_from(LINKS)), min_size=1, max_size=5)


def tar(entries) -> bytes:
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w:gz") as archive:
        for name, kind, link in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o6777
            info.size = 5 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"hello"))
    return buffer.getvalue()


def zipped(entries) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        for name, kind, link in entries:
            info = zipfile.ZipInfo()
            info.filename = name  # as it is: the constructor would mend it
            if kind == tarfile.SYMTYPE:
                info.external_attr = 0o120777 << 16
            archive.writestr(info, link if kind == tarfile.SYMTYPE else b"hello")
    return buffer.getvalue()


MAKERS = {"set.tar.gz": tar, "set.zip": zipped}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", MAKERS)
@cases(120)
@given(entries=ENTRIES, flip=st.one_of(st.none(), st.none(), st.tuples(st.integers(0, 10**6), st.integers(0, 255))))
@example(entries=[("set/a", tarfile.REGTYPE, "")], flip=None)
@example(entries=[("set/out", tarfile.SYMTYPE, "../.."), ("set/out/a", tarfile.REGTYPE, "")], flip=None)
@example(entries=[("set", tarfile.SYMTYPE, "/etc")], flip=None)
def test_archives(tmp_path_factory, name, entries, flip):
    root = tmp_path_factory.mktemp("archives")
    place, cache, elsewhere = root / "place", root / "below" / "cache", root / "elsewhere"
    for folder in (place, cache, elsewhere):
        folder.mkdir(parents=True)
    (elsewhere / "kept").write_text("kept")
    content = bytearray(MAKERS[name](entries))
    if flip is not None:
        content[flip[0] % len(content)] = flip[1]
    (place / name).write_bytes(content)
    source = RemoteFile(f"https://nowhere.invalid/{name}", hashlib.md5(content).hexdigest(), 10_000)
    before = tree(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "SOURCES", {"set": source})
        patch.delenv("TORCHMCL_DATA", raising=False)
        for module in ("find", "download"):
            patch.setattr(f"torchmcl.data.{module}.cache", lambda: cache)
        found = ends_well(lambda: obtain(["set"], str(place)))
    assert not Path("/etc/torchmcl-was-here").exists()
    after = tree(root)
    new = [Path(path) for path in after if path not in before]
    assert {path: after[path] for path in before} == before
    for path in new:
        assert path.is_relative_to(cache / "set"), path
        assert path.resolve().is_relative_to(cache / "set"), path
        assert not path.is_symlink()
        assert not path.stat().st_mode & 0o6000  # nobody becomes someone else by running it
    if found is None:
        assert not new
    else:
        assert found == cache / "set"
        assert found.is_dir()
