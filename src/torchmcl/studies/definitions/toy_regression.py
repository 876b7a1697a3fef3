"""Hypotheses of every method where a distribution changes from one mode to three modes (not in the paper).

The study trains 4, 9 and 16 members, each with a hidden layer of its own on a shared one, on 2,000 examples of the
synthetic data set three-modes with one target each, and evaluates them on 25 targets for each of 41 inputs. With
grouped-modes, AMCL's memory counts the modes as groups.
"""

from typing import TYPE_CHECKING, Any

import torch

from torchmcl.analysis import style
from torchmcl.data.datasets import modes
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.store import Result
from torchmcl.studies.study import spread, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEMBERS = (4, 9, 16)
DRAWN, INPUTS = 9, 4  # the number of members and of inputs in the figure
METHODS: dict[str, dict[str, Any]] = {
    "ie": {},
    "mcl": {},
    "smcl": {},
    "relaxed": {},
    "evolving": {},
    "annealed": {},
    "amcl, no memory": {"memory": False},
}
GROUPED: dict[str, dict[str, Any]] = {
    "smcl": {},
    "annealed": {},
    "amcl, no memory": {"memory": False},
    "amcl, no memory, beta 0.5": {"memory": False, "beta": 0.5},
    "amcl": {},
}


def spec(scale: Scale, data: str, members: int, name: str, *, seed: int) -> Spec:
    """Return the specification of one run."""
    method, options = name.split(",")[0], (METHODS if data == "three-modes" else GROUPED)[name]
    own = options if method == "amcl" else {"score": "bce", **options}  # AMCL's auxiliary output replaces the scores
    record = [f"hypotheses:{INPUTS}"]
    return scale.spec(method, kind="numbers", data=data, members=members, seed=seed, record=record, **own)


def rows(scale: Scale) -> list[tuple[str, int, str]]:
    """Return the data set, the number of members and the method of each row."""
    sizes = MEMBERS if scale.name != "smoke" else MEMBERS[:1]
    plain = [("three-modes", members, name) for members in sizes for name in METHODS]
    return [*plain, *(("grouped-modes", MEMBERS[0], name) for name in GROUPED)]


def runs(scale: Scale) -> list[Spec]:
    """Return 26 configurations per seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


def idle(result: Result) -> float:
    """Return the percentage of hypotheses that are never the closest one to a test target."""
    won = result["test"]["winners"]
    return 100 * sum(share == 0 for share in won) / len(won)


def table(results: Results) -> Table:
    """Show the distortion, the scores and the hypotheses that never win."""
    cells = []
    for data, members, name in rows(results.scale):
        own = results.of(spec, results.scale, data, members, name)
        distortion = [2 * one**2 for one in values(own, "oracle_rmse")]  # D times the mean squared error
        errors = (spread(values(own, metric), digits) for metric, digits in (("rmse", 3), ("nll", 2), ("emd", 3)))
        cells.append((data, str(members), name, spread(distortion, 4), *errors, spread([idle(one) for one in own], 1)))
    columns = ("data", "M", "method", "distortion", "RMSE", "NLL", "EMD", "never win")
    about = (
        "distortion: mean squared distance of the closest hypothesis; RMSE: of the weighted mean; NLL: kernels on the "
        "Voronoi cells, with the bandwidth chosen on the validation split; EMD: earth mover's distance of the weighted "
        "hypotheses to 25 targets per input; never win: percent of the hypotheses that are closest to no test target."
    )
    return Table("Hypotheses where one mode becomes three", columns, cells, about)


def figure(results: Results) -> "Figure | None":
    """Draw targets and hypotheses of the first seed for several inputs, with areas in proportion to the scores."""
    members = min(DRAWN, max(members for _, members, _ in rows(results.scale)))
    found = {name: results.of(spec, results.scale, "three-modes", members, name) for name in METHODS}
    drawn = {name: own[0]["records"][f"hypotheses:{INPUTS}"] for name, own in found.items() if own}
    if not drawn:
        return None
    generator, weights = torch.Generator().manual_seed(0), torch.tensor(modes.WEIGHTS)
    figure = style.new(1.65 * INPUTS + 0.5, 1.7 * len(drawn))
    grid = figure.subplots(len(drawn), INPUTS, squeeze=False, sharex=True, sharey=True)
    for axes, (name, records) in zip(grid, drawn.items(), strict=True):
        for axis, record in zip(axes, records, strict=True):
            target, _ = modes.draw(torch.tensor([record["input"]]), 150, weights, generator)
            axis.scatter(*target[0].T, s=2, color=style.GREY, alpha=0.5, linewidths=0)
            sizes, drawn_at = [4 + 130 * score for score in record["scores"]], zip(*record["hypotheses"], strict=True)
            axis.scatter(*drawn_at, s=sizes, color=style.PALETTE[1], alpha=0.8, linewidths=0)
            axis.set(xlim=(-1.25, 1.25), ylim=(-1.0, 1.4), aspect="equal")
            style.tidy(axis)
        axes[0].set_ylabel(name.replace(", ", ",\n"))
    for axis, record in zip(grid[0], next(iter(drawn.values())), strict=True):
        axis.set_title(f"x = {record['input'][0]:.2f}")
    return figure
