"""Hypotheses that never win, with and without balanced assignment, on the toy problem of Rupprecht et al. 2017.

Usage: python benchmarks/never_win.py [seeds]. Writes never_win.json next to this file.

A target is uniform in one of four quarters of the square [-1, 1]^2: with probability 1 - x in the lower left or the
upper right one, and otherwise in one of the other two. One network predicts 16 hypotheses. A hypothesis never wins if
it is not the closest one to any of 8,192 new targets. The distortion is the mean squared distance of the closest
hypothesis. There are three starts: that of PyTorch's layers; "scattered", with a random offset of standard deviation 3
for each hypothesis; and "one ahead", with all hypotheses but one ten units away.
"""

import json
import sys
from pathlib import Path
from statistics import mean

import machine
import torch
from torch import Tensor, nn

from torchmcl._utils import atomic
from torchmcl.assignment import Balanced
from torchmcl.functional import winner_takes_all

HERE = Path(__file__).parent
MEMBERS, BATCH, STEPS = 16, 128, 1000
STARTS = ("default", "scattered", "one ahead")


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = torch.rand(count, 1, generator=generator), torch.rand(count, 2, generator=generator)
    first = torch.randint(2, (count,), generator=generator) * 2 - 1
    same = torch.rand(count, generator=generator) < 1 - x[:, 0]
    return x, y * torch.stack([first, torch.where(same, first, -first)], 1)


MODES = {
    "hard": lambda: ("hard", {}),
    "balanced": lambda: ("balanced", {}),
    "balanced, running counts": lambda: (Balanced(1), {}),
    "balanced, slack 0.5": lambda: (Balanced(1, 0.5), {}),
    "balanced, slack 1": lambda: (Balanced(1, 1.0), {}),
    "relaxed": lambda: ("relaxed", {}),
    "annealed": lambda: ("annealed", {"epochs": STEPS}),
}


def train(name: str, start: str, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * MEMBERS))
    with torch.no_grad():
        if start == "scattered":
            network[-1].bias += 3 * torch.randn(2 * MEMBERS)
        elif start == "one ahead":
            network[-1].bias[2:] += 10
    mode, options = MODES[name]()
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def losses(count: int) -> Tensor:
        x, y = draw(count, generator)
        return (network(x).view(count, MEMBERS, 2) - y[:, None]).square().sum(2).T

    for step in range(1, STEPS + 1):
        loss, _ = winner_takes_all(losses(BATCH), mode, **options, **({"epoch": step} if options else {}))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        test = losses(8192)
    wins = test.argmin(0).bincount(minlength=MEMBERS) / test.shape[1]
    idle = 100 * float((wins == 0).double().mean())
    return {"never_win": idle, "distortion": float(test.amin(0).mean()), "largest_share": 100 * float(wins.max())}


def main(seeds: int) -> None:
    found = {"machine": machine.describe(torch.get_num_threads()), "members": MEMBERS, "steps": STEPS}
    found |= {"seeds": [*range(seeds)], "rows": []}
    for start in STARTS:
        for name in MODES:
            runs = [train(name, start, seed) for seed in range(seeds)]
            means = {key: mean(run[key] for run in runs) for key in runs[0]}
            found["rows"].append({"start": start, "mode": name, **means, "runs": runs})
            print(start, name, {key: round(value, 4) for key, value in means.items()}, flush=True)
    atomic.write(HERE / "never_win.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
