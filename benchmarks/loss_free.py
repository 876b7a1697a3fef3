"""The loss-free bias of mixture-of-experts routers (Wang et al. 2024, DeepSeek-V3) against `Balanced`.

Usage: python benchmarks/loss_free.py [seeds]. Writes loss_free.json next to this file.

The rival adds a bias to each member's regret before the top-k choice. After each batch, it raises the bias of each
member that took more than an equal share by a fixed rate, and lowers that of the others.

- stream: batches of random regrets in which one of ten members is ahead: the largest share of a member after 10, 100
  and 1,000 batches, and the mean regret.
- digits: ten small networks on scikit-learn's digits, K = 1, with sMCL, which uses the rule in all epochs, and AMCL,
  which uses it until the memory is fixed, with beta 0.01 and 0.5. Shares are those of the last epoch in which the rule
  is used. Members without a class take less than 1 % of the examples of the last epoch.
"""

import json
import sys
from functools import partial
from pathlib import Path
from statistics import mean

import machine
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from torchmcl import Classification, Memory, State
from torchmcl._utils import atomic
from torchmcl.assignment import Balanced, Record, TopK
from torchmcl.objectives import Objective, Phases, costs
from torchmcl.tasks.combiners import drop_auxiliary
from torchmcl.tasks.combiners import mean as mean_of_members

HERE = Path(__file__).parent
MEMBERS, CLASSES, WIDTH, BATCH, EPOCHS, WARMUP = 10, 10, 16, 128, 30, 5


class LossFree(nn.Module):
    """The rival: top-k of the regret plus a bias that follows the sign of the load's error."""

    bias: Tensor

    def __init__(self, k: int, rate: float) -> None:
        super().__init__()
        self.k, self.rate = k, rate
        self.register_buffer("bias", torch.zeros(MEMBERS, 1))

    def forward(self, regret: Tensor, state: State) -> Tensor:
        weights = TopK(self.k)(regret.detach() + self.bias, state)
        load = weights.sum(1, keepdim=True)
        if state.recording(self):
            self.bias = self.bias + self.rate * (load - load.mean()).sign()
        return weights


RULES = {f"bias {rate:g}": partial(LossFree, 1, rate) for rate in (0.001, 0.01, 0.1)}
RULES |= {"top-k": partial(TopK, 1), "balanced": partial(Balanced, 1), "balanced, slack 0.3": partial(Balanced, 1, 0.3)}


def stream(batches: int = 1000) -> list[dict]:
    rows = []
    for name, build in RULES.items():
        generator, taken, regret, row = torch.Generator().manual_seed(0), torch.zeros(MEMBERS), 0.0, {"rule": name}
        rule, ahead = build(), torch.tensor([3.0] + [0.0] * (MEMBERS - 1))[:, None]
        for number in range(1, batches + 1):
            given = torch.randn(MEMBERS, BATCH, generator=generator) - ahead
            weights = rule(given, State(record=True))
            taken, regret = taken + weights.sum(1), regret + float((given * weights).sum()) / BATCH
            if number in (10, 100, batches):
                row[f"largest_share_{number}"] = float(taken.max() / taken.sum())
        rows.append({**row, "smallest_share": float(taken.min() / taken.sum()), "mean_regret": regret / batches})
        print(rows[-1])
    return rows


class Networks(nn.Module):
    """M networks with one hidden layer, (B, 64) -> (M, B, outputs)."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(MEMBERS, 64, WIDTH) / 8)
        self.last = nn.Parameter(torch.randn(MEMBERS, WIDTH, outputs) / WIDTH**0.5)
        self.bias = nn.Parameter(torch.zeros(MEMBERS, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.first).relu() @ self.last + self.bias


def objective(method: str, beta: float, rule) -> nn.Module:
    task = Classification(CLASSES)
    if method == "smcl":
        return Objective(task, costs.nothing, rule)
    memory, leave = Memory(CLASSES, MEMBERS, k=1), partial(costs.to_auxiliary, classes=CLASSES)
    by_loss = Objective(task, costs.Scaled(leave, beta), Record(rule, memory))
    return Phases(by_loss, Objective(task, costs.Scaled(leave, 0.5), memory.recall), after=WARMUP)


def train(method: str, beta: float, rule: str, seed: int) -> dict:
    """Train on digits and return the errors on the test set in percent, and the shares."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16 - 0.5, y, test_size=0.2, random_state=0, stratify=y)
    x, x_test, y, y_test = (torch.as_tensor(part) for part in parts)
    torch.manual_seed(seed)
    chosen, networks = RULES[rule](), Networks(CLASSES + (method == "amcl"))
    loss, optimizer = objective(method, beta, chosen), torch.optim.Adam(networks.parameters(), lr=0.01)
    for epoch in range(1, EPOCHS + 1):
        taken = torch.zeros(MEMBERS)
        for index in torch.randperm(len(x)).split(BATCH):
            outcome = loss(networks(x[index].float()), y[index], State(epoch, EPOCHS))
            optimizer.zero_grad()
            outcome.loss.backward()
            optimizer.step()
            taken += outcome.weights.sum(1)
        if epoch == (WARMUP if method == "amcl" else EPOCHS):
            shares = taken / taken.sum()
    with torch.no_grad():
        logits = networks(x_test.float())
    right = logits[..., :CLASSES].argmax(2) == y_test
    combined = (drop_auxiliary if method == "amcl" else mean_of_members)(logits)
    return {
        "oracle_error": 100 * float((~right.any(0)).double().mean()),
        "top1_error": 100 * float((combined.argmax(1) != y_test).double().mean()),
        "smallest_share": float(shares.min()),
        "largest_share": float(shares.max()),
        "without_class": int((taken < 0.01 * taken.sum()).sum()),
    }


def digits(seeds: int) -> list[dict]:
    rows = []
    for method, beta in (("smcl", 0.0), ("amcl", 0.01), ("amcl", 0.5)):
        for rule in RULES:
            found = [train(method, beta, rule, seed) for seed in range(seeds)]
            means = {name: mean(one[name] for one in found) for name in found[0]}
            rows.append({"method": method, "beta": beta, "rule": rule, **means, "runs": found})
            print(method, beta, rule, {name: round(value, 3) for name, value in means.items()}, flush=True)
    return rows


def main(seeds: int) -> None:
    found = {"machine": machine.describe(torch.get_num_threads()), "stream": stream(), "digits": digits(seeds)}
    atomic.write(HERE / "loss_free.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
