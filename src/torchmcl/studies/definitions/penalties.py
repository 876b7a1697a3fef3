"""Penalties beta and gamma of AMCL (table 6).

The study trains 5 ResNet-10 networks on CIFAR-10 with K = 1. Beta scales the cost of leaving before the memory is
fixed, and gamma scales this cost afterwards. At scales with a grid, all cells have the learning rate and weight decay
that were chosen for the paper's choice of beta and gamma, and cells that share neither of them have three seeds.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.definitions.sensitivity import SETTING
from torchmcl.studies.published import find
from torchmcl.studies.study import errors, published_errors, spread

BETAS = (0.01, 0.05, 0.1, 0.2, 0.5)
GAMMAS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0)
PUBLISHED = (0.01, 0.5)  # the paper's choice for all other experiments


def spec(scale: Scale, beta: float, gamma: float, *, seed: int) -> Spec:
    """Return the specification of the run for one cell."""
    setting: dict[str, Any] = SETTING if scale.grid else {}
    return scale.spec("amcl", network="resnet10", data="cifar10", k=1, beta=beta, gamma=gamma, seed=seed, **setting)


def runs(scale: Scale) -> list[Spec]:
    """Return 30 configurations for each of the first three seeds, and those that are compared for other seeds."""
    cells = [(beta, gamma) for beta in scale.subset(BETAS) for gamma in scale.subset(GAMMAS)]
    return [spec(scale, *cell, seed=seed) for seed in scale.seeds for cell in cells if seed < 3 or compared(cell)]


def compared(cell: tuple[float, float]) -> bool:
    """Return whether a cell is in the row or the column of the paper's choice."""
    return cell[0] == PUBLISHED[0] or cell[1] == PUBLISHED[1]


def cell_name(cell: tuple[float, float]) -> str:
    """Return the name of a cell for a note.

    >>> cell_name((0.01, 2.0))
    'beta 0.01, gamma 2'
    """
    return "beta {:g}, gamma {:g}".format(*cell)


def table(results: Results) -> Table:
    """Show the oracle and top-1 errors, the published errors and the busiest member's share, with one row per beta.

    The paper's choice is compared with the other cells in its row and column, and with the best cell.
    """
    betas, gammas = results.scale.subset(BETAS), results.scale.subset(GAMMAS)
    own = {(b, g): results.of(spec, results.scale, b, g) for b in betas for g in gammas}
    here, paper = [], []
    for beta in betas:
        largest = [max(result["share"]) for gamma in gammas for result in own[beta, gamma]]
        cells = [" / ".join(errors(own[beta, gamma])) for gamma in gammas]
        here.append(("here", f"{beta:g}", *cells, spread(largest, 0)))
        cells = [" / ".join(published_errors(find("penalties", beta=beta, gamma=gamma))) for gamma in gammas]
        paper.append(("paper", f"{beta:g}", *cells, ""))
    best = results.best(own)
    notes = [f"Smallest harmonic mean on {results.chosen_on}: {cell_name(best)}."] if best is not None else []
    comparisons = []
    for cell in own:
        if cell != PUBLISHED and (cell == best or compared(cell)):
            comparisons += compare(cell_name(PUBLISHED), own.get(PUBLISHED, []), cell_name(cell), own[cell])
    columns = ("", "beta", *(f"gamma {gamma:g}" for gamma in gammas), "largest share")
    about = "Oracle / top-1 error in percent of the test set; share of the busiest member in percent; K = 1."
    return Table("Penalties beta and gamma", columns, [*here, *paper], about, notes, comparisons)
