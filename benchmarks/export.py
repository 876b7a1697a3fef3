"""Exported graphs of a run compared with eager PyTorch on the test set: labels, probabilities, images per second.

Usage: export.py RUN [--batch 256] [--rounds 5] [--json FILE]. CIFAR-10 is read from TORCHMCL_DATA.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import machine
import torch

from torchmcl.inference.export import TOLERANCE, export, onnx_runner, pt2_runner
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.data_config import DataConfig
from torchmcl.serialization.model_files import training_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5, help="passes per graph, in turn; the median is reported")
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder for the graphs (default: exported/ in the run folder)"
    )
    parser.add_argument("--json", type=Path, default=None, help="JSON file to write")
    options = parser.parse_args()
    specialists = Specialists.load(options.run)
    config = training_config(options.run)
    data = DataConfig.of(config).load(config["data"], config.get("seed", 0))
    folder = options.folder or options.run / "exported"
    export(specialists, folder / "model.onnx")
    export(specialists, folder / "model.pt2")
    export(specialists, folder / "small.onnx", quantize=data.train.subset(torch.arange(0, len(data.train), 40)))

    def eager(x):
        answer = specialists.predict_batch(x)
        return {"label": answer.label, "probabilities": answer.probabilities, "accepted": answer.accepted}

    ways = {
        "eager": eager,
        "onnx": onnx_runner((folder / "model.onnx").read_bytes()),
        "pt2": pt2_runner((folder / "model.pt2").read_bytes()),
        "onnx, 8 bits": onnx_runner((folder / "small.onnx").read_bytes()),
    }
    images = data.test.images[torch.arange(len(data.test))]
    said = {name: predict(way, images, options.batch) for name, way in ways.items()}
    seconds = {name: [] for name in ways}
    for _ in range(options.rounds):  # in turn, so that other load on the machine affects all of them
        for name, way in ways.items():
            start = time.perf_counter()
            predict(way, images, options.batch)
            seconds[name].append(time.perf_counter() - start)
    figures = {name: compared(said[name], said["eager"], data.test.target) for name in ways}
    for name, times in seconds.items():
        figures[name]["images_per_second"] = round(len(images) / median(times), 1)
    threads = torch.get_num_threads()
    about = {
        "run": {name: config.get(name) for name in ("method", "network", "width", "members", "data", "seed")},
        "examples": len(images),
        "batch": options.batch,
        "machine": machine.describe(threads),
    }
    print(f"{about['run']}: {len(images)} test examples, batches of {options.batch}, {threads} threads")
    for name, row in figures.items():
        print(
            f"{name:13} {row['images_per_second']:9.1f} /s  error {row['error']:6.2f} %  other labels "
            f"{row['other_labels']:5d}  other acceptance {row['other_accepted']:5d}  probabilities {row['off']:.1e}"
        )
    exact = all(figures[name]["other_labels"] == 0 and figures[name]["off"] <= TOLERANCE for name in ("onnx", "pt2"))
    print(f"labels identical and probabilities to {TOLERANCE:g}: {'yes' if exact else 'NO'}")
    if options.json:
        options.json.write_text(json.dumps({**about, "figures": figures}, indent=1) + "\n")


@torch.no_grad()
def predict(way, images, batch):
    parts = [way(part) for part in images.split(batch)]
    return {name: torch.cat([part[name] for part in parts]) for name in ("label", "probabilities", "accepted")}


def compared(said, eager, target):
    return {
        "error": round(100 * float((said["label"] != target).double().mean()), 4),
        "other_labels": int((said["label"] != eager["label"]).sum()),
        "other_accepted": int((said["accepted"] != eager["accepted"]).sum()),
        "off": float((said["probabilities"] - eager["probabilities"]).abs().max()),
    }


if __name__ == "__main__":
    main()
