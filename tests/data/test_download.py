import contextlib
import hashlib
import io
import shutil
import ssl
import subprocess
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from torchmcl import data
from torchmcl.data import download
from torchmcl.data.datasets import digits
from torchmcl.data.download import SOURCES, RemoteFile, obtain, unpack
from torchmcl.errors import UsageError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder that a server on this machine serves -> the folder, its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("TORCHMCL_DATA", raising=False)
    monkeypatch.setattr(download, "SCHEME", "http")  # but for this server, nobody without https is asked
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


MAKERS = {"set.tar.gz": tar, "set.zip": zipped}


def publish(monkeypatch, path: Path, address: str, *, most: int = 1000, md5: str | None = None) -> None:
    md5 = md5 or hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(download, "SOURCES", {"set": RemoteFile(address + path.name, md5, most)})


def test_sources_are_safe() -> None:
    for source in SOURCES.values():
        assert source.url.startswith("https://")
        assert len(source.md5) == 32
        assert int(source.md5, 16)


@pytest.mark.parametrize("tqdm", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_downloaded_and_unpacked(served, monkeypatch, empty_cache, name, tqdm) -> None:
    if tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setattr(download, "find_spec", lambda _: None)
    folder, address = served
    archive = MAKERS[name](folder / name, {"set/file.txt": b"hello"})
    publish(monkeypatch, archive, address)
    assert obtain(["set", "other"]) == empty_cache / "set"
    assert (empty_cache / "set/file.txt").read_bytes() == b"hello"
    assert {path.name for path in empty_cache.iterdir()} == {"set", name}
    archive.unlink()
    assert obtain(["set", "other"]) == empty_cache / "set"  # nobody is asked again


@pytest.mark.parametrize("verbose", [True, False])
def test_a_download_is_reported(served, monkeypatch, empty_cache, verbose, caplog, capfd) -> None:
    folder, address = served
    publish(monkeypatch, tar(folder / "set.tar.gz", {"set/file.txt": b"hello"}), address)

    def reader(parts, *, directory, seed):
        obtain(["set"])
        return digits.load(parts)

    monkeypatch.setattr(data, "_REGISTERED", {"set": reader})
    with caplog.at_level("INFO", logger="torchmcl"):
        data.load("set", verbose=verbose)
    line = f"Downloading {address}set.tar.gz to {empty_cache}."
    assert [(record.name, record.getMessage()) for record in caplog.records if record.name.startswith("torchmcl")] == [
        ("torchmcl.data.download", line)
    ]
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", f"{line}\n" if verbose else "")


def test_a_single_file(served, monkeypatch, empty_cache) -> None:
    folder, address = served
    (folder / "file.mat").write_bytes(b"numbers")
    md5 = hashlib.md5(b"numbers").hexdigest()
    monkeypatch.setattr(download, "SOURCES", {"numbers/file.mat": RemoteFile(address + "file.mat", md5, 10)})
    assert obtain(["numbers/file.mat"]) == empty_cache / "numbers/file.mat"
    assert (empty_cache / "numbers/file.mat").read_bytes() == b"numbers"


def one_line(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_another_checksum(served, monkeypatch, empty_cache) -> None:
    folder, address = served
    publish(monkeypatch, tar(folder / "set.tar.gz", {"set/file.txt": b"hello"}), address, md5="0" * 32)
    with pytest.raises(UsageError, match="wrong checksum") as caught:
        obtain(["set"])
    one_line(caught)
    assert list(empty_cache.iterdir()) == []


def test_more_than_announced(served, monkeypatch, empty_cache) -> None:
    folder, address = served
    publish(monkeypatch, tar(folder / "set.tar.gz", {"set/file.txt": b"hello"}), address, most=10)
    with pytest.raises(UsageError, match=r"Expected at most 10 bytes from .*, got \d+"):
        obtain(["set"])
    assert list(empty_cache.iterdir()) == []


def test_more_than_nobody_announced(served, monkeypatch, empty_cache) -> None:
    """A server that does not say how much will come, and does not end."""
    _, address = served
    sent = []

    def endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):  # until nobody listens
            while len(sent) < 10_000:
                self.wfile.write(bytes(10_000))
                sent.append(10_000)

    monkeypatch.setattr(Quiet, "do_GET", endless)
    monkeypatch.setattr(download, "SOURCES", {"set": RemoteFile(address + "set.zip", "0" * 32, 10**6)})
    with pytest.raises(UsageError, match=r"Expected at most 1000000 bytes from .*, got more") as caught:
        obtain(["set"])
    one_line(caught)
    assert sum(sent) < 10**8
    assert list(empty_cache.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/set.zip", "ftp://127.0.0.1/set.zip", "file:///etc/set.zip", "/etc/set.zip"]
)
def test_only_https_is_asked(monkeypatch, url) -> None:
    monkeypatch.delenv("TORCHMCL_DATA", raising=False)
    monkeypatch.setattr(download, "SOURCES", {"set": RemoteFile(url, "0" * 32, 1000)})
    with pytest.raises(UsageError, match="Expected an https URL"):
        obtain(["set"])


@pytest.fixture
def secure(tmp_path, monkeypatch):
    """A server with a certificate of its own, trusted here -> the folder it serves, its address, and where it leads."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate, folder = tmp_path / "key.pem", tmp_path / "certificate.pem", tmp_path / "secure"
    folder.mkdir()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.delenv("TORCHMCL_DATA", raising=False)
    leads: dict[str, str] = {}

    class Leading(Quiet):
        def do_GET(self) -> None:
            if self.path not in leads:
                super().do_GET()
                return
            self.send_response(302)
            self.send_header("Location", leads[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Leading, directory=str(folder)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"https://localhost:{server.server_port}/", leads
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_redirect_stays_with_https(secure, monkeypatch, empty_cache) -> None:
    folder, address, leads = secure
    archive = tar(folder / "moved.tar.gz", {"set/file.txt": b"hello"})
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(download, "SOURCES", {"set": RemoteFile(address + "set.tar.gz", md5, 1000)})
    for onward in ("http://127.0.0.1:9/set.tar.gz", "//127.0.0.1:9/x", "ftp://127.0.0.1/x", "file:///etc/passwd"):
        leads["/set.tar.gz"] = onward
        with pytest.raises(UsageError, match=r"set\.tar\.gz") as caught:
            obtain(["set"])
        if not onward.startswith("//"):  # which is https still, where nobody listens
            assert f"redirects to {onward}, which does not use https" in one_line(caught)
        assert list(empty_cache.iterdir()) == []
    leads["/set.tar.gz"] = address + "moved.tar.gz"
    assert obtain(["set"]) == empty_cache / "set"


def test_a_certificate_that_nobody_vouches_for(secure, monkeypatch, empty_cache) -> None:
    _, address, _ = secure
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    monkeypatch.setattr(download, "SOURCES", {"set": RemoteFile(address + "set.tar.gz", "0" * 32, 1000)})
    with pytest.raises(UsageError, match="SSLError"):
        obtain(["set"])
    assert list(empty_cache.iterdir()) == []


def test_not_found_on_the_server(served, monkeypatch) -> None:
    _, address = served
    monkeypatch.setattr(download, "SOURCES", {"set": RemoteFile(address + "set.zip", "0" * 32, 1000)})
    with pytest.raises(UsageError, match=r"downloading .*set\.zip .* failed \(HTTPError\)"):
        obtain(["set"])


@pytest.mark.usefixtures("no_network")
def test_no_network_says_where_it_looked(tmp_path, empty_cache) -> None:
    with pytest.raises(UsageError) as caught:
        obtain(["cifar-10-batches-bin", "cifar-10-batches-py"], tmp_path)
    assert one_line(caught) == (
        "Cannot find cifar-10-batches-bin or cifar-10-batches-py or cifar-10-binary.tar.gz or cifar-10-python.tar.gz "
        f"in {tmp_path}, {empty_cache}, and "
        "downloading https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (md5 c32a1d4ab5d03f1284b67883e8d87530) "
        "failed (ConnectionError). Put the data into one of these folders, or set TORCHMCL_DATA to "
        "the folder that contains the data."
    )


@pytest.mark.usefixtures("no_network")
def test_what_cannot_be_downloaded() -> None:
    with pytest.raises(UsageError, match=r"Cannot find icoseg or iCoseg in .*, and no download is available"):
        obtain(["icoseg", "iCoseg"])


@pytest.mark.usefixtures("no_network")
def test_an_archive_that_lies_there(tmp_path, monkeypatch, empty_cache) -> None:
    publish(monkeypatch, tar(tmp_path / "set.tar.gz", {"set/file.txt": b"hello"}), "https://nowhere.invalid/")
    assert obtain(["set"], tmp_path) == empty_cache / "set"
    assert (empty_cache / "set/file.txt").read_bytes() == b"hello"


@pytest.mark.usefixtures("no_network")
def test_an_archive_that_is_another(tmp_path, monkeypatch) -> None:
    publish(monkeypatch, tar(tmp_path / "set.tar.gz", {"a": b""}), "https://nowhere.invalid/", md5="0" * 32)
    with pytest.raises(UsageError, match=r"The MD5 checksum of .* is not 0{32}"):
        obtain(["set"], tmp_path)


@pytest.mark.usefixtures("no_network")
def test_an_archive_without_the_set(tmp_path, monkeypatch, empty_cache) -> None:
    publish(monkeypatch, tar(tmp_path / "set.tar.gz", {"other/file": b""}), "https://nowhere.invalid/")
    with pytest.raises(UsageError, match=r"There is no folder set in .*set\.tar\.gz"):
        obtain(["set"], tmp_path)
    assert list(empty_cache.iterdir()) == []


@pytest.mark.parametrize("member", ["../out.txt", "set/../../out.txt"])
@pytest.mark.parametrize("name", MAKERS)
def test_no_member_leaves_its_folder(tmp_path, name, member) -> None:
    to = tmp_path / "to"
    to.mkdir()
    archive = MAKERS[name](tmp_path / name, {member: b"out"})
    with pytest.raises(UsageError, match=r"The archive .*set\.(tar\.gz|zip) is (damaged|not safe)"):
        unpack(archive, to, 100)
    assert not (tmp_path / "out.txt").exists()
    assert list(to.iterdir()) == []


def test_a_member_at_the_root(tmp_path) -> None:
    out, to = tmp_path / "out.txt", tmp_path / "to"
    to.mkdir()
    with pytest.raises(UsageError, match="would be written outside its folder"):
        unpack(zipped(tmp_path / "set.zip", {str(out): b"out"}), to, 100)
    unpack(tar(tmp_path / "set.tar.gz", {str(out): b"out"}), to, 100)  # tarfile takes it as a path below
    assert not out.exists()
    assert [path.name for path in to.rglob("*.txt")] == ["out.txt"]


def test_a_link_out_of_the_folder(tmp_path) -> None:
    to = tmp_path / "to"
    to.mkdir()
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../.."
        archive.addfile(link)
    with pytest.raises(UsageError, match="is not safe: it contains a link or a device"):
        unpack(tmp_path / "set.tar.gz", to, 100)


@pytest.mark.parametrize("name", MAKERS)
def test_a_bomb(tmp_path, name) -> None:
    archive = MAKERS[name](tmp_path / name, {f"set/{i}": bytes(10**6) for i in range(3)})
    assert archive.stat().st_size < 20_000
    to = tmp_path / "to"
    to.mkdir()
    with pytest.raises(UsageError, match="would unpack to more than 2000000 bytes"):
        unpack(archive, to, 2 * 10**6)
    assert list(to.iterdir()) == []


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.usefixtures("no_network")
def test_a_damaged_archive(tmp_path, monkeypatch, name, empty_cache) -> None:
    content = hashlib.sha512(b"").digest() * 50
    archive = MAKERS[name](tmp_path / name, {"set/file": content})
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    publish(monkeypatch, archive, "https://nowhere.invalid/", most=10**6)
    with pytest.raises(UsageError, match=r"The archive .* is damaged"):
        obtain(["set"], tmp_path)
    assert list(empty_cache.iterdir()) == []


@pytest.mark.usefixtures("no_network")
def test_another_process_was_faster(tmp_path, monkeypatch, empty_cache) -> None:
    publish(monkeypatch, tar(tmp_path / "set.tar.gz", {"set/file.txt": b"hello"}), "https://nowhere.invalid/")
    real = download.unpack

    def slow(*arguments) -> None:
        real(*arguments)
        (empty_cache / "set").mkdir()
        (empty_cache / "set/file.txt").write_bytes(b"theirs")

    monkeypatch.setattr(download, "unpack", slow)
    assert (obtain(["set"], tmp_path) / "file.txt").read_bytes() == b"theirs"
    assert [path.name for path in empty_cache.iterdir()] == ["set"]
