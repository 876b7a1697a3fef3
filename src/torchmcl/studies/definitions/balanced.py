"""Balanced assignment of AMCL, with small and large penalties (not in the paper).

The study trains 5 and 10 ResNet-10 networks on CIFAR-10 with K = 1: AMCL as published and with each kind of balance,
and with values of beta at which the published form leaves members without examples.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.store import Result
from torchmcl.studies.study import error_cells, error_columns, spread

MEMBERS = (5, 10)
BETAS = (0.01, 0.2, 0.5)
BALANCES = (False, "memory", "assignment", "both")


def spec(scale: Scale, members: int, beta: float, balance: Any, *, seed: int) -> Spec:
    """Return the specification of the run of one row."""
    options = {"k": 1, "beta": beta, "balance": balance, "members": members, "seed": seed}
    return scale.spec("amcl", network="resnet10", data="cifar10", **options)


def rows(scale: Scale) -> list[tuple[int, float, Any]]:
    """Return the number of members, beta and the balance of each row."""
    sizes = MEMBERS if scale.name != "smoke" else MEMBERS[:1]
    return [(members, beta, balance) for members in sizes for beta in scale.subset(BETAS) for balance in BALANCES]


def runs(scale: Scale) -> list[Spec]:
    """Return 24 configurations per seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


def share_cells(own: list[Result]) -> list[str]:
    """Return the smallest and the largest share of a member, and the number of members without an example per run."""
    shares = [result["share"] for result in own]
    idle = " ".join(str(sum(part == 0 for part in share)) for share in shares)
    return [spread([min(share) for share in shares], 1), spread([max(share) for share in shares], 1), idle]


def table(results: Results) -> Table:
    """Show the errors and shares, and compare each kind of balance with the published form."""
    cells, compared, scale = [], [], results.scale
    for members, beta, balance in rows(scale):
        own = results.of(spec, scale, members, beta, balance)
        cells.append((str(members), f"{beta:g}", balance or "none", *error_cells(scale, own), *share_cells(own)))
        if balance:
            published = results.of(spec, scale, members, beta, False)
            compared += compare(f"balance {balance}", own, "none", published, f"M = {members}, beta {beta:g}: ")
    columns = ("M", "beta", "balance", *error_columns(scale), "smallest share", "largest share", "without examples")
    about = "Percent of the test set; shares in percent of the training set; members without examples per run; K = 1."
    return Table("Balanced assignment", columns, cells, about, comparisons=compared)
