"""Penalties beta and gamma of AMCL (table 6).

CIFAR-10, 5 ResNet-10, K = 1: beta weighs the auxiliary class before the memory is fixed, gamma after.
"""

from torchmcl.studies.published import find
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed, spread
from torchmcl.studies.tables import Table

BETAS = (0.01, 0.05, 0.1, 0.2, 0.5)
GAMMAS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0)
PUBLISHED = (0.01, 0.5)  # what the paper chose by its table, and has in all other experiments


def spec(scale: Scale, beta: float, gamma: float, *, seed: int) -> Spec:
    """One cell's run."""
    return scale.spec("amcl", network="resnet10", data="cifar10", k=1, beta=beta, gamma=gamma, seed=seed)


def runs(scale: Scale) -> list[Spec]:
    """30 configurations."""
    return [
        spec(scale, beta, gamma, seed=seed)
        for seed in scale.seeds
        for beta in scale.few(BETAS)
        for gamma in scale.few(GAMMAS)
    ]


def named(cell: tuple[float, float]) -> str:
    """A cell in words.

    >>> named((0.01, 2.0))
    'beta 0.01, gamma 2'
    """
    return "beta {:g}, gamma {:g}".format(*cell)


def table(results: Results) -> Table:
    """Oracle / top-1 error, a row for each beta, then the paper's; and how uneven members' shares are.

    The paper's choice is compared with the cells of its row and column, and with the best.
    """
    gammas = results.scale.few(GAMMAS)
    own = {(b, g): results.of(spec, results.scale, b, g) for b in results.scale.few(BETAS) for g in gammas}
    here, paper = [], []
    for beta in results.scale.few(BETAS):
        largest = [max(result["share"]) for gamma in gammas for result in own[beta, gamma]]
        cells = [" / ".join(errors(own[beta, gamma])) for gamma in gammas]
        here.append(("here", f"{beta:g}", *cells, spread(largest, 0)))
        known = [" / ".join(printed(find("penalties", beta=beta, gamma=gamma))) for gamma in gammas]
        paper.append(("paper", f"{beta:g}", *known, ""))
    best = results.best(own)
    notes = []
    if best is not None:
        notes += [f"Least harmonic mean on {results.chosen_on}: {named(best)}."]
    for cell in own:
        if cell != PUBLISHED and (cell == best or cell[0] == PUBLISHED[0] or cell[1] == PUBLISHED[1]):
            notes += compare(named(cell), own[cell], named(PUBLISHED), own.get(PUBLISHED, []))
    columns = ("", "beta", *(f"gamma {gamma:g}" for gamma in gammas), "largest share")
    about = "Oracle / top-1 error in percent of the test set; share of the busiest member in percent; K = 1."
    return Table("Penalties beta and gamma", columns, [*here, *paper], about, notes)
