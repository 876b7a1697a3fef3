"""Cost of cached features: extraction against a bare ONNX Runtime session, training against tensors in memory.

python benchmarks/features.py --out benchmarks/features.json
python benchmarks/features.py --run --out benchmarks/features.json   # adds the time of complete runs on CIFAR-10

Extraction and session, and training on cached features and on tensors, alternate in one process, each of them first in
every other round, and the median of the rounds' ratios is reported. Extraction includes hashing, rounding to float16
and writing the files; the conversion of the network to ONNX is reported apart. Training is `fit` after the cache is
filled, without the time to load the data; the tensors are the same heads on the same features as a data set in memory.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import machine
import numpy as np
import onnxruntime
import torch

from torchmcl import fit, networks
from torchmcl.data import from_arrays
from torchmcl.data.examples import Examples
from torchmcl.inference import feature_store, features
from torchmcl.inference.export import module_to_onnx
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.structures.split import Split

TARGETS = {"extraction": 0.95, "training": 0.95}
CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--side", type=int, default=128, help="height and width of the network's input")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--weights", default="pretrained", help="pretrained or none")
    parser.add_argument("--run", action="store_true", help="time runs on CIFAR-10 and add them to the JSON file")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)  # print the peak memory of a run
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    options = parser.parse_args()
    if options.run:
        add_runs(options.out)
        return
    pixels = np.random.default_rng(0).integers(0, 256, (options.images, 3, 32, 32), dtype=np.uint8)
    images = Examples(torch.from_numpy(pixels), torch.arange(options.images) % CLASSES, tuple("abcdefghij"))
    if options.peak:
        train_on_images(images, options, epochs=1)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
        return
    found: dict[str, Any] = {"machine": machine.describe(torch.get_num_threads()), "images": options.images}
    found |= {"side": options.side, "rounds": options.rounds, "extraction": extraction(images, options)}
    found["training"] = training(images, options)
    found["peak_mb"] = round(peak(options))
    found["targets"] = {name: found[name]["ratio"] >= least for name, least in TARGETS.items()}
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def add_runs(out: Path | None) -> None:
    """Time `torchmcl train` on CIFAR-10 after the cache is filled, including the start of the program."""
    command = [sys.executable, "-m", "torchmcl", "train", "--data", "cifar10", "--network", "efficientnet_lite0"]
    command += ["--image-size", "128", "--quiet"]
    found: dict[str, Any] = {"command": " ".join(["torchmcl", *command[3:], "--method", "METHOD"]), "seconds": {}}
    found["machine"] = machine.describe(torch.get_num_threads())
    with tempfile.TemporaryDirectory() as place:
        for method in ("filled", "ie", "amcl"):
            name = ["ie", "--epochs", "1"] if method == "filled" else [method]
            words = [*command, "--out", f"{place}/{method}", "--method", *name]
            found["seconds"][method] = round(seconds(lambda words=words: subprocess.run(words, check=True)), 1)
    del found["seconds"]["filled"]
    found["at_most_90"] = max(found["seconds"].values()) <= 90
    print(json.dumps(found, indent=1))
    if out is not None:
        out.write_text(json.dumps({**json.loads(out.read_text()), "run": found}, indent=1) + "\n")


def extraction(images: Examples, options: argparse.Namespace) -> dict[str, Any]:
    """Compare `cached_features` with a session that only runs."""
    config = ModelConfig("ie", 2, images.classes, "efficientnet_lite0", (3, 32, 32), preprocess(options.side))
    trunk = networks.build("efficientnet_lite0", CLASSES, weights=options.weights).stem[0].module
    module = features.Trunk(features.fold_batch_norm(trunk), config.preprocess)
    started = time.perf_counter()
    content = module_to_onnx(module, torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "images", ["features"])
    conversion = time.perf_counter() - started
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    pixels = images.images.numpy()

    def bare() -> None:
        for at in range(0, len(pixels), features.BATCH):
            session.run(None, {"images": pixels[at : at + features.BATCH]})

    def ours() -> None:
        with tempfile.TemporaryDirectory() as place:
            features.cached_features([images], trunk, config, root=Path(place))

    converted = features.module_to_onnx
    features.module_to_onnx = lambda *_: content  # counted apart
    rounds = alternating(lambda: seconds(bare), lambda: seconds(ours), options.rounds)
    features.module_to_onnx = converted
    return {
        "ratio": round(median(bare / ours for bare, ours in rounds), 3),
        "images_per_second": round(len(images) / median(ours for _, ours in rounds)),
        "conversion_seconds": round(conversion, 1),
    }


def training(images: Examples, options: argparse.Namespace) -> dict[str, Any]:
    """Compare training on cached features with training of the same heads on tensors."""
    with tempfile.TemporaryDirectory() as place:
        feature_store.features_folder = lambda: Path(place)
        stored = train_on_images(images, options, epochs=1)
        rows = stored.ensemble.trunk.module
        prepared = features.Trunk(rows, preprocess(options.side))
        with torch.no_grad():
            table = torch.cat([prepared(part) for part in images.images.split(64)])
        rounds = alternating(
            lambda: more_epochs(lambda **epochs: train_on_table(table, images, options, **epochs)),
            lambda: more_epochs(lambda **epochs: train_on_images(images, options, **epochs)),
            options.rounds,
        )
    return {
        "ratio": round(median(plain / cached for plain, cached in rounds), 3),
        "examples_per_second": round(0.8 * len(images) * (options.epochs - 1) / median(cached for _, cached in rounds)),
    }


def alternating(one: Callable[[], float], two: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Return the times of both in each round, except in the first, which warms up; each is first in turn."""
    times = []
    for number in range(rounds + 1):
        first, second = (one, two)[:: 1 if number % 2 else -1]
        pair = first(), second()
        times.append(pair[:: 1 if number % 2 else -1])
    return times[1:]


def seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def more_epochs(train: Callable[..., object]) -> float:
    """Return the time of the epochs after the first."""
    return seconds(train) - seconds(lambda: train(epochs=1))


def preprocess(side: int) -> str:
    return f"resize:{side}x{side}+normalize:127/128"


def common(options: argparse.Namespace, epochs: int | None) -> dict[str, Any]:
    recipe = networks.input_of("efficientnet_lite0").recipe
    return {**recipe, "members": 5, "epochs": epochs or options.epochs, "verbose": False}


def train_on_images(images: Examples, options: argparse.Namespace, epochs: int | None = None) -> Any:
    data = from_arrays(images.images, images.target.numpy(), validation=0.0)
    network = {"image_size": options.side, "weights": options.weights}
    return fit("amcl", "efficientnet_lite0", data, **common(options, epochs), **network)


def train_on_table(
    table: torch.Tensor, images: Examples, options: argparse.Namespace, epochs: int | None = None
) -> Any:
    def network(outputs: int) -> Split:
        norm = torch.nn.BatchNorm1d(table.shape[1], affine=False, momentum=None)
        layers = [torch.nn.Linear(table.shape[1], 256), torch.nn.ReLU(), torch.nn.Linear(256, outputs)]
        return Split(norm, torch.nn.Sequential(*layers), features=table.shape[1])

    data = from_arrays(table, images.target.numpy(), validation=0.0)
    return fit("amcl", network, data, exchange="weight_sharing", **common(options, epochs))


def peak(options: argparse.Namespace) -> float:
    """Return the peak memory of a process that extracts features and trains, in MB."""
    words = ["--images", options.images, "--side", options.side, "--weights", options.weights, "--peak"]
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "XDG_CACHE_HOME": place}
        command = [sys.executable, __file__, *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
