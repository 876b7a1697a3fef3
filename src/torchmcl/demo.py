"""The main job on embedded data: train AMCL and its baselines on scikit-learn's digits, and compare them."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from torchmcl import Ensemble, Method, State, methods, metrics

COMPARED = ("ie", "smcl", "cmcl", "vmcl", "amcl")
CLASSES = 10


@dataclass(frozen=True)
class Data:
    """Images (N, 1, 8, 8) and labels (N,), to train on and to test with."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Result:
    """What one method came to: errors on the test set, and who took what of the training set in the last epoch."""

    method: Method
    oracle: Tensor
    top1: Tensor
    members: Tensor
    taken: Tensor


def digits(seed: int) -> Data:
    """scikit-learn's 1,797 real digits, four fifths of each class to train on."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    train_x, test_x = (torch.tensor(part / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8) for part in parts[:2])
    train_y, test_y = (torch.tensor(part) for part in parts[2:])
    return Data((train_x, train_y), (test_x, test_y))


def train(name: str, data: Data, *, members: int, epochs: int, seed: int, tick: Callable[[], None]) -> Result:
    """Train an ensemble of simple CNNs by the paper's recipe, its steps in the learning rate scaled to `epochs`."""
    torch.manual_seed(seed)
    method = methods.build(name, members=members, classes=CLASSES, k=1)
    ensemble = Ensemble.build(method, "simple_cnn", width=16, channels=1, seed=seed)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=max(epochs // 4, 1), gamma=0.2)
    x, y = data.train
    taken = torch.zeros(CLASSES, members)
    for epoch in range(1, epochs + 1):
        taken.zero_()
        for batch in torch.randperm(len(x)).split(128):
            outcome = method.objective(ensemble(x[batch]), y[batch], State(epoch, epochs))
            optimizer.zero_grad()
            outcome.loss.backward()
            optimizer.step()
            taken += metrics.taken(outcome.weights, y[batch], groups=CLASSES)
        schedule.step()
        tick()
    return evaluate(method, ensemble, data.test, taken)


@torch.no_grad()
def evaluate(method: Method, ensemble: Ensemble, test: tuple[Tensor, Tensor], taken: Tensor) -> Result:
    """Errors on the test set; a member's answer is its best real class."""
    x, y = test
    opinions = ensemble.eval()(x)
    members = opinions.logits.softmax(2)[:, :, :CLASSES]
    return Result(
        method,
        oracle=metrics.oracle_error(members, y),
        top1=metrics.top1_error(method.combine(opinions), y),
        members=metrics.member_errors(members, y),
        taken=taken,
    )


def comparison(results: list[Result]) -> Table:
    """One row a method, in percent."""
    table = Table(title="Digits, test set (percent)", caption=CAPTION, caption_justify="left")
    for heading in ("method", "oracle error", "top-1 error", "each member's error", "share each takes", "purity"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for result in results:
        table.add_row(
            result.method.name,
            percent(result.oracle, 2),
            percent(result.top1, 2),
            "  ".join(map(percent, result.members)),
            "  ".join(map(percent, result.taken.sum(0) / result.taken.sum())),
            percent(metrics.purity(result.taken)),
        )
    return table


CAPTION = (
    "Oracle error: every member is wrong. Share: of the training set, in the last epoch.\n"
    "Purity: of that, what went to the member that took most of the class."
)


def matrix(result: Result) -> Table:
    """Who takes which class, in percent of the class."""
    table = Table(title="AMCL: who took which digit (percent)")
    table.add_column("digit", justify="right")
    for m in range(len(result.members)):
        table.add_column(f"member {m + 1}", justify="right")
    for digit, row in enumerate(result.taken / result.taken.sum(1, keepdim=True)):
        table.add_row(str(digit), *(f"[bold green]{percent(part)}[/]" if part > 0 else "." for part in row))
    return table


def percent(fraction: Tensor, digits: int = 0) -> str:
    """A fraction in percent, at least two places wide.

    >>> percent(torch.tensor(0.0028), 2), percent(torch.tensor(0.03))
    ('0.28', ' 3')
    """
    return f"{100 * float(fraction):2.{digits}f}"


def main(arguments: list[str] | None = None) -> None:
    """Train, then print the comparison and AMCL's class-by-member matrix."""
    parser = argparse.ArgumentParser(prog="python -m torchmcl.demo", description=__doc__)
    parser.add_argument("--members", type=int, default=5, help="networks in each ensemble (default 5)")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of each training (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of split, weights and order (default 0)")
    options = parser.parse_args(arguments)
    if options.members < 1 or options.epochs < 1 or options.seed < 0:
        parser.error(f"Expected members and epochs from 1 and a seed from 0, got {vars(options)}.")
    console = Console(width=None if Console().is_terminal else 120)
    data = digits(options.seed)
    columns = (
        TextColumn("training [bold]{task.description:>5}[/]"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
    )
    results = []
    with Progress(*columns, console=console) as progress:
        for name in COMPARED:
            tick = partial(progress.advance, progress.add_task(name, total=options.epochs))
            results.append(
                train(name, data, members=options.members, epochs=options.epochs, seed=options.seed, tick=tick)
            )
    console.print(comparison(results))
    console.print(matrix(results[-1]))


if __name__ == "__main__":
    main()
