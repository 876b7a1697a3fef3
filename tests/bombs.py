"""Small files and values that stand for very much; run as a program, each is given to its reader and measured."""

import io
import json
import resource
import struct
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from torchmcl import methods, networks
from torchmcl._utils import plain_yaml
from torchmcl.data import download, matlab, pickles, read_image
from torchmcl.data.datasets import cifar, npz
from torchmcl.ensemble import Ensemble
from torchmcl.errors import UsageError

YAML = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


def png(folder: Path) -> Path:
    """A header of 60,000 x 60,000 pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    return put(folder / "a.png", content)


def mat(folder: Path) -> Path:
    """A hundred compressed arrays of 50 MB, each of 50 KB."""
    body = struct.pack("<IIII", 6, 8, 9, 0) + struct.pack("<IIii", 5, 8, 1, 50_000_000)
    body += struct.pack("<IIc7x", 1, 1, b"X") + struct.pack("<II", 2, 50_000_000) + bytes(50_000_000)
    packed = zlib.compress(struct.pack("<II", 14, len(body)) + body)
    content = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + (struct.pack("<II", 15, len(packed)) + packed) * 100
    return put(folder / "a.mat", content)


def laughs(folder: Path, end: bytes) -> Path:
    """A pickle of 80 tuples, each twice the one before: 2 ** 80 values, in 500 bytes."""
    levels = b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(80))
    return put(folder / "batches.meta", end.replace(b"BOMB", b"K\x01" + levels))


def arrays(folder: Path) -> Path:
    """Arrays that claim a terabyte."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        for name in ("x.npy", "y.npy"):
            np.lib.format.write_array_header_1_0(
                head := io.BytesIO(), {"descr": "|u1", "fortran_order": False, "shape": (10**12,)}
            )
            archive.writestr(name, head.getvalue() + bytes(100))
    return folder / "a.npz"


def archive(folder: Path) -> Path:
    """A gigabyte of nothing, in a megabyte."""

    class Zeros(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    with tarfile.open(folder / "a.tar.gz", "w:gz", compresslevel=1) as tar:
        info = tarfile.TarInfo("set/a")
        info.size = 3 * 10**8
        tar.addfile(info, Zeros())
    return folder / "a.tar.gz"


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def unhashed(folder: Path) -> None:
    pickles.read_pickle(laughs(folder, b"\x80\x02}BOMBK\x01s."))


def unnamed(folder: Path) -> None:
    (folder / "names").mkdir()
    laughs(folder / "names", b"\x80\x02}U\x0blabel_names]BOMBas.")
    cifar._names(folder / "names", cifar.CIFAR10[1], cifar.CLASSES10)


def unshaped(folder: Path) -> None:
    state = b"(K\x01BOMBBOMB\x86cnumpy\ndtype\nU\x02u1\x85R\x89U\x01atb"
    code = b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n)R" + state + b"s."
    pickles.read_pickle(laughs(folder, code))["data"].bytes_(folder)


BOMBS = {
    "an image of 60,000 x 60,000": lambda folder: read_image(png(folder)),
    "MATLAB, 5 GB in 5 MB": lambda folder: matlab.read_matlab(mat(folder), max_bytes=10**8),
    "npz, 1 TB in 500 bytes": lambda folder: npz.load(str(arrays(folder))),
    "tar, 300 MB in 1 MB": lambda folder: download.unpack(archive(folder), folder, 10**6),
    "YAML, 9 ** 11 values": lambda folder: plain_yaml.read(put(folder / "c.yaml", YAML.encode())),
    "YAML, 100,000 levels": lambda folder: plain_yaml.read(put(folder / "c.yaml", b"[" * 100_000)),
    "a pickle's key of 2 ** 80": unhashed,
    "a pickle's name of 2 ** 80": unnamed,
    "a pickle's shape of 2 ** 80": unshaped,
    "a network of 109 TB": lambda folder: networks.build("resnet18", width=10**5),
    "10,000 networks of 45 MB": lambda folder: Ensemble.build("ie", "resnet18", members=10_000),
    "a billion members": lambda folder: methods.build("ie", members=10**9),
    "a thousand billion layers": lambda folder: networks.build("mlp", inputs=1, depth=10**12),
}


def main() -> None:
    """Each bomb's name, seconds, and MB by which the most memory ever used has grown, as JSON."""
    torch.set_num_threads(1)
    with torch.device("meta"):
        networks.mlp(2, inputs=2)  # what is imported once is not a bomb's
    networks.build("resnet18")
    for name, give in BOMBS.items():
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            try:
                give(Path(folder))
                said = ""
            except UsageError as refusal:
                said = str(refusal)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(json.dumps([name, said, round(time.process_time() - start, 2), round(grown)]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
