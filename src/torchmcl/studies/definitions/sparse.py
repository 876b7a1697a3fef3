"""Sparse training of AMCL, and its rivals at the same price (not in the paper).

Once the memory is fixed, a member sees its own images and a part r of the others. The study trains AMCL with several
r, M and K, independent ensembles, and one wider network on CIFAR-10 and CIFAR-100. Runs of AMCL with the same seed, M,
K and number of epochs have the same warm-up, and therefore the same owners of the classes. At scales with a grid,
rivals and the rows of AMCL that are compared with rivals only have their own learning rate and weight decay, and AMCL's
other rows have those of the study `sensitivity`. On CIFAR-10, five members are also trained longer, at about the cost
of dense training. Rows that are compared with nothing have three seeds. At `scratch`, the study has the compared rows
with K = 1, and independent ensembles of two and five members.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torchmcl.analysis import style
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.cost import in_networks
from torchmcl.studies.definitions.sensitivity import SETTING
from torchmcl.studies.error_figures import PANELS
from torchmcl.studies.scales import UNSEEN
from torchmcl.studies.statistics import mean_std
from torchmcl.studies.store import Result
from torchmcl.studies.study import error_cells, error_columns, spread, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DATA = ("cifar10", "cifar100")
FEW = 3  # seeds of rows that are compared with nothing
SCORES = {"amcl": "claim_energy", "ie": "energy"}  # for unseen data: the best scores of outputs in `unseen_data`
BRANCH = "45%"  # of the epochs train the seed network
LONGER = {0.05: 3.5, 0.1: 3.0, 0.25: 2.25, 0.5: 1.6}  # by r: times the epochs, at about the cost of r = 1


class Configuration(NamedTuple):
    """A row of the table: AMCL, unless K is None, and whether it is compared with other rows."""

    members: int
    k: int | None
    rate: float = 1.0
    compared: bool = True
    correction: str | None = None
    memory: str | None = None
    branch: str | None = None
    longer: bool = False
    wider: bool = False

    @property
    def name(self) -> str:
        """The name of the row in comparisons and figures."""
        if self.k is None:
            return "wider network" if self.wider else f"ie, M = {self.members}"
        branch = f"branch {self.branch}" if self.branch else None
        parts = (self.correction, self.memory, branch, "longer" if self.longer else None)
        return ", ".join([f"amcl, M = {self.members}, K = {self.k}, r = {self.rate:g}", *filter(None, parts)])


DENSE, SPARSE = Configuration(5, 1), Configuration(5, 1, 0.25)
CURVE = (
    Configuration(5, 1, 0.05, compared=False),
    Configuration(5, 1, 0.1),
    SPARSE,
    Configuration(5, 1, 0.5, compared=False),
    DENSE,
)
SHUFFLED = Configuration(5, 1, 0.25, memory="shuffled")
WEIGHT = Configuration(5, 1, 0.25, correction="weight")
EQUAL_COST = (*(Configuration(5, 1, rate, compared=False, longer=True) for rate in LONGER), DENSE)
VARIANTS = (
    *EQUAL_COST[:-1],
    WEIGHT,
    Configuration(10, 1, 0.1, compared=False, correction="weight"),
    SHUFFLED,
    Configuration(5, 1, 0.25, compared=False, branch="random"),
    Configuration(5, 1, 0.25, compared=False, branch="confusion"),
)
LARGER = (Configuration(10, 1, 0.1), Configuration(20, 1, 0.05))
OVERLAPPING = tuple(Configuration(row.members, 2, row.rate) for row in (SPARSE, *LARGER))
RIVALS = (Configuration(2, None), Configuration(1, None, wider=True))
THREE, FIVE = Configuration(3, None), Configuration(5, None, compared=False)  # at the cost of K = 2, and of r = 1
ROWS = (*CURVE, *VARIANTS, *LARGER, *OVERLAPPING, *RIVALS, THREE, FIVE)
FROM_SCRATCH = (*CURVE[1:3], DENSE, WEIGHT, SHUFFLED, LARGER[0], *RIVALS, FIVE)
LINES = {"M = 5": CURVE, "M > 5": LARGER, "K = 2": OVERLAPPING, "IE": (RIVALS[0], THREE, FIVE), "wider": RIVALS[1:]}


def spec(scale: Scale, data: str, row: Configuration, *, seed: int) -> Spec:
    """Return the specification of the run of one row."""
    method, record = "ie" if row.k is None else "amcl", [f"unseen_outputs:{UNSEEN[scale.name]}", "calibrated"]
    if row.k is None:
        record += top_m(scale, data)
    full = scale.spec(method, network="resnet10", data=data, members=row.members, seed=seed, record=record)
    options: dict[str, Any] = {"exchange": full.options.get("exchange", "none"), "k": row.k}
    if scale.transfer:
        options["exchange"] = None
    if row.k is not None:
        options |= {"balance": "memory", "sample_others": row.rate, "sample_correction": row.correction}
        options |= {"memory": row.memory, **(SETTING if scale.grid and row not in (*LARGER, *OVERLAPPING) else {})}
    if row.branch is not None:
        options |= {"branch": BRANCH, "branch_groups": row.branch}
    if row.longer:
        options["epochs"] = round(LONGER[row.rate] * epochs(full))
    if row.wider:  # about twice the operations
        wide = {"hidden": 2 * full.options["hidden"]} if scale.transfer else {"width": round(1.4 * width(full))}
        options |= wide
    return Spec({**full.options, **options}, full.record)


def top_m(scale: Scale, data: str) -> list[str]:
    """Return the records of the rivals' most probable classes, one for each number of members of AMCL."""
    return [f"top_m:{members}" for members in sorted({row.members for row in rows(scale, data) if row.k})]


def epochs(spec: Spec) -> int:
    """Return the number of epochs of a run."""
    return int(spec.configuration["epochs"])


def width(spec: Spec) -> int:
    """Return the width of the network of a run."""
    return int(spec.configuration["width"])


def cost(scale: Scale, data: str, row: Configuration) -> float:
    """Return the operations of a row's training in units of one network with the usual epochs and width."""
    one, own = (spec(scale, data, each, seed=0) for each in (Configuration(1, None), row))
    return in_networks(own, one) * epochs(own) / epochs(one)


def rows(scale: Scale, data: str) -> list[Configuration]:
    """Return the rows of a data set: 20 members only on CIFAR-100, longer training and branching only on CIFAR-10."""
    few_classes = data == DATA[0]
    most = {"smoke": 5}.get(scale.name, 10 if few_classes else 20)
    chosen = [row for row in ROWS if row.members <= most and (few_classes or not (row.longer or row.branch))]
    if scale.name == "smoke":
        chosen = [row for row in chosen if row.rate in (0.25, 1.0) and row != THREE]  # M is at most 3
    return [row for row in chosen if row in FROM_SCRATCH] if scale.name == "scratch" else chosen


def runs(scale: Scale) -> list[Spec]:
    """Return 21 configurations on CIFAR-10 and 17 on CIFAR-100; 10 and 4 of them have at most three seeds."""
    return [
        spec(scale, data, row, seed=seed)
        for seed in scale.seeds
        for data in scale.data_sets(DATA)
        for row in rows(scale, data)
        if row.compared or seed < FEW
    ]


def found(results: Results, data: str) -> dict[Configuration, list[Result]]:
    """Return the results of each row."""
    return {row: results.of(spec, results.scale, data, row) for row in rows(results.scale, data)}


def pairs(scale: Scale, data: str) -> list[tuple[Configuration, Configuration]]:
    """Return the rows that are compared: with dense training, with the control, and with rivals at about their cost."""
    listed = rows(scale, data)
    of_curve = [(row, DENSE) for row in CURVE if row.compared and row != DENSE]
    priced = [(row, rival) for row in (SPARSE, *LARGER) for rival in RIVALS] + [(row, THREE) for row in OVERLAPPING]
    found = [*of_curve, (WEIGHT, DENSE), (SPARSE, SHUFFLED), *priced]
    return [pair for pair in found if set(pair) <= set(listed)]


def table(results: Results) -> Table:
    """Show errors, cost and calibration of each row, and compare those that are listed in `pairs`."""
    cells, compared, scale = [], [], results.scale
    for data in scale.data_sets(DATA):
        own = found(results, data)
        name = str(spec(scale, data, DENSE, seed=0).options["data"])
        for row, of_row in own.items():
            errors = dict(zip(error_columns(scale), error_cells(scale, of_row), strict=True))
            errors["cost"] = f"{cost(scale, data, row):.2f}"
            if row.k is None and scale.protocol and of_row:
                likely = [[result["records"][name] for result in of_row] for name in top_m(scale, data)]
                errors["top-M"] = " / ".join(map(spread, likely))
            cells.append((name, row.name, *errors.values(), *more_cells(scale, of_row)))
        for one, two in pairs(scale, data):
            compared += compare(one.name, own[one], two.name, own[two], f"{name}: ")
    columns = dict.fromkeys((*error_columns(scale), "cost"))
    about = (
        "Percent of the test set, except NLL and cost. r: part of the others' images that a member sees; amcl has "
        "balanced memory. The cost is the mean over the training with the warm-up, and includes additional epochs. "
        f"calibrated NLL: with a temperature from the validation split. AUROC: {UNSEEN[scale.name]} against the test "
        "set, by the claim energy for amcl and by the energy for the others. weight: the others' loss is weighted by "
        "1 / r; longer: more epochs, at about the cost of dense training; shuffled: each class has the owners of "
        "another, random class; branch: members start as copies of a network that is trained on all classes for "
        f"{BRANCH} of the epochs, and own random or confused classes. The rivals have a top-M for each M of amcl."
    )
    heads = ("data", "training", *columns, "NLL", "calibrated NLL", "AUROC")
    return Table("Sparse training", heads, cells, about, comparisons=compared)


def more_cells(scale: Scale, own: Sequence[Result]) -> list[str]:
    """Return the cells for the NLL before and after calibration, and for the detection of unseen data."""
    found = [(result["records"], SCORES[result["configuration"]["method"]]) for result in own]
    unseen = [records[f"unseen_outputs:{UNSEEN[scale.name]}"][score]["auroc"] for records, score in found]
    calibrated = [records["calibrated"]["nll"] for records, _ in found]
    return [spread(values(own, "nll"), 3), spread(calibrated, 3), spread(unseen, 1)]


def figure(results: Results) -> "Figure | None":
    """Plot the errors of AMCL with five members against r, and the errors of all rows against the cost."""
    scale = results.scale
    by_data = {data: found(results, data) for data in scale.data_sets(DATA)}
    if not any(own for rows in by_data.values() for own in rows.values()):
        return None
    figure = style.new(10, 0.4 + 2.4 * len(by_data))
    grid = figure.subplots(len(by_data), 2 * len(PANELS), squeeze=False)
    for axes, (data, own) in zip(grid, by_data.items(), strict=True):
        title = spec(scale, data, DENSE, seed=0).options["data"]
        for number, (metric, name) in enumerate(PANELS.items()):
            over_r, over_cost = axes[number], axes[number + len(PANELS)]
            draw(over_r, metric, 0, "M = 5", [(row.rate, own.get(row, [])) for row in CURVE])
            if EQUAL_COST[0] in own:
                draw(over_r, metric, len(LINES), "equal cost", [(row.rate, own.get(row, [])) for row in EQUAL_COST])
            over_r.set(xlabel="r", xscale="log")
            over_r.set_xticks([row.rate for row in CURVE], [f"{row.rate:g}" for row in CURVE])
            over_r.set_xticks([], minor=True)
            for colour, (label, line) in enumerate(LINES.items()):
                draw(over_cost, metric, colour, label, [(cost(scale, data, row), own.get(row, [])) for row in line])
            over_cost.set(xlabel="cost (networks)")
            for axis in (over_r, over_cost):
                axis.set(title=f"{title}: {name}", ylabel="percent")
                style.tidy(axis, grid="y")
    handles = [dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)) for axes in grid[0]]
    legend = {label: handle for own in handles for label, handle in own.items()}
    figure.legend(legend.values(), legend.keys(), loc="outside right upper", frameon=False, fontsize=8)
    return figure


def draw(axes: "Axes", metric: str, colour: int, label: str, line: Sequence[tuple[float, Sequence[Result]]]) -> None:
    """Draw the mean and the standard deviation of the rows that have results."""
    points = [(across, *mean_std(values(own, metric))) for across, own in sorted(line, key=lambda one: one[0]) if own]
    if points:
        across, means, deviations = zip(*points, strict=True)
        bars = [deviation or 0.0 for deviation in deviations]
        axes.errorbar(across, means, yerr=bars, marker="o", capsize=2.5, label=label, **style.line(colour))
