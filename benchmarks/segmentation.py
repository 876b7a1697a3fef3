"""The time of an AMCL training step on masks, relative to M times the step of a single FCN, measured in turn.

Usage: python benchmarks/segmentation.py [repeats]. Writes segmentation.json next to this file.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional as F

from torchmcl import Ensemble, State, methods, networks
from torchmcl._utils import atomic
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl.training.recipe import Recipe

HERE = Path(__file__).parent
WIDTH, BATCH = 16, 32


def alone(x, mask):
    network = networks.build("fcn", 3, width=WIDTH).to(memory_format=torch.channels_last).train()
    optimizer = Recipe().build(network.parameters())

    def step():
        optimizer.zero_grad()
        F.cross_entropy(network(x), mask).backward()
        optimizer.step()

    return step


def together(x, mask, members, **options):
    method = methods.build("amcl", members=members, classes=2, groups=36)
    ensemble = Ensemble.build(method, "fcn", width=WIDTH, **options).to(memory_format=torch.channels_last).train()
    objective = method.new_objective()
    optimizer, group = Recipe().build(ensemble.parameters()), torch.arange(BATCH) % 36
    objective(torch.randn(members, BATCH, 3, 1, 1), torch.zeros(BATCH, 1, 1).long(), State(1, 9, group))

    def step():
        optimizer.zero_grad()
        objective(ensemble(x), mask, State(9, 9, group)).loss.backward()
        optimizer.step()

    return step


def main(repeats: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(BATCH, 3, 75, 125).contiguous(memory_format=torch.channels_last)
    mask = torch.randint(2, (BATCH, 75, 125))
    candidates = {"alone": alone(x, mask)}
    for members in (2, 5):
        candidates[f"amcl M={members}, no exchange"] = together(x, mask, members, exchange="none")
        candidates[f"amcl M={members}, light fusion"] = together(x, mask, members, preset="light")
    times: dict[str, list[float]] = {name: [] for name in candidates}
    with keep_freed_memory():
        for repeat in range(repeats + 1):
            for name, step in candidates.items():
                start = time.perf_counter()
                step()
                if repeat:
                    times[name].append(time.perf_counter() - start)
    one = median(times["alone"])
    rows = {}
    for name, taken in times.items():
        members = int(name.split("M=")[1][0]) if "M=" in name else 1
        rows[name] = {"ms_per_image": 1e3 * median(taken) / BATCH, "over_M_times_alone": median(taken) / members / one}
        print(f"{name:28} {rows[name]['ms_per_image']:7.2f} ms per image, {rows[name]['over_M_times_alone']:.3f}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": "python benchmarks/segmentation.py",
        "commit": commit.strip(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "scale": f"FCN of width {WIDTH}, batches of {BATCH} images of 75x125, median of {repeats} steps",
    }
    atomic.write(HERE / "segmentation.json", json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
