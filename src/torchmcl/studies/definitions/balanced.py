"""Balanced assignment of AMCL, with small and large penalties (not in the paper).

The study trains ResNet-10 networks on CIFAR-10 with K = 1: 5 and 10 members with the published penalties and each kind
of balance, and 5 members in the corners of the study `penalties` with large beta, where the published form leaves
members without examples. At scales with a grid, all rows have the learning rate and weight decay of that study.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.definitions import penalties
from torchmcl.studies.store import Result
from torchmcl.studies.study import error_cells, error_columns, spread
from torchmcl.studies.tables import MISSING

MEMBERS = (5, 10)
BALANCES = (False, "memory", "assignment", "both")
CORNERS = tuple((beta, gamma) for beta in penalties.BETAS[-2:] for gamma in (penalties.GAMMAS[0], penalties.GAMMAS[-1]))
IN_CORNERS = (False, "assignment")


def spec(scale: Scale, members: int, beta: float, gamma: float, balance: Any, *, seed: int) -> Spec:
    """Return the specification of the run of one row; without balance, 5 members share runs with other studies."""
    full = penalties.spec(scale, beta, gamma, seed=seed)
    return Spec({**full.options, "members": members, "balance": balance}, full.record)


def settings(scale: Scale) -> list[tuple[int, float, float, tuple[Any, ...]]]:
    """Return the number of members, beta and gamma of each block of rows, and its kinds of balance."""
    published = [(members, *penalties.PUBLISHED, BALANCES) for members in MEMBERS]
    corners = [(MEMBERS[0], *corner, IN_CORNERS) for corner in CORNERS]
    if scale.name == "smoke":
        published, corners = [(2, *penalties.PUBLISHED, BALANCES)], [(2, *CORNERS[-1], IN_CORNERS)]
    return [*published, *corners]


def rows(scale: Scale) -> list[tuple[int, float, float, Any]]:
    """Return the number of members, beta, gamma and the balance of each row."""
    return [(*setting, balance) for *setting, balances in settings(scale) for balance in balances]


def runs(scale: Scale) -> list[Spec]:
    """Return 16 configurations per seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


def share_cells(own: list[Result]) -> list[str]:
    """Return the smallest and the largest share of a member, and the number of members without an example per run."""
    shares = [result["share"] for result in own]
    idle = " ".join(str(sum(part == 0 for part in share)) for share in shares)
    return [spread([min(share) for share in shares], 1), spread([max(share) for share in shares], 1), idle or MISSING]


def table(results: Results) -> Table:
    """Show the errors and shares, and compare each kind of balance with the published form."""
    cells, compared, scale = [], [], results.scale
    for members, beta, gamma, balances in settings(scale):
        own = {balance: results.of(spec, scale, members, beta, gamma, balance) for balance in balances}
        for balance, found in own.items():
            first = (str(members), f"{beta:g}", f"{gamma:g}", balance or "none")
            cells.append((*first, *error_cells(scale, found), *share_cells(found)))
            if balance:
                where = f"M = {members}, {penalties.cell_name((beta, gamma))}: "
                compared += compare(f"balance {balance}", found, "none", own[False], where)
    shares = ("smallest share", "largest share", "without examples")
    columns = ("M", "beta", "gamma", "balance", *error_columns(scale), *shares)
    about = (
        "Percent of the test set; shares in percent of the training set; members without examples, and therefore "
        "without a class, per run; K = 1."
    )
    return Table("Balanced assignment", columns, cells, about, comparisons=compared)
