from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.figures.assignment_matrix import assignment_matrix
from torchmcl.analysis.figures.assignment_ratios import assignment_ratios
from torchmcl.analysis.figures.auxiliary_density import auxiliary_density
from torchmcl.analysis.figures.confidence_histograms import confidence_histograms
from torchmcl.analysis.figures.cross_entropy import cross_entropy
from torchmcl.analysis.figures.grad_cam_grid import grad_cam_grid
from torchmcl.analysis.figures.member_errors import member_errors
from torchmcl.analysis.figures.overlays import overlays
from torchmcl.analysis.figures.reliability import reliability
from torchmcl.analysis.figures.risk_coverage import risk_coverage
from torchmcl.analysis.figures.share_over_time import share_over_time
from torchmcl.analysis.figures.unseen_roc import unseen_roc
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.errors import UsageError, known_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Entry:
    """A figure: its name, its title, what it tells, of which runs it can be drawn, and how.

    Where `together`, several runs go into one figure; else each has its own. A `to_float32` one needs a whole page.
    """

    name: str
    title: str
    meaning: str
    draw: "Callable[..., Figure]"
    fits: Callable[[RunEvaluation], bool] = lambda evaluation: True
    together: bool = False
    to_float32: bool = False

    def parts(self, evaluations: Sequence[RunEvaluation]) -> list[tuple[RunEvaluation, ...]]:
        """The runs that it fits, as they go into figures: all into one, or each into its own."""
        fitting = [evaluation for evaluation in evaluations if self.fits(evaluation)]
        return [tuple(fitting)] if self.together and fitting else [(evaluation,) for evaluation in fitting]


FIGURES = (
    Entry(
        "assignment_matrix",
        "Who took which class",
        "Percent of each class's training examples that each member took in the last epoch. A frame marks whose the "
        "class is. One dark cell a row is full specialisation; even rows are none.",
        assignment_matrix,
        lambda evaluation: evaluation.assigned is not None and evaluation.owners is not None,
    ),
    Entry(
        "share_over_time",
        "Share over time",
        "Percent of all assignments that each member took in each epoch. A line that falls to 0 is a member that "
        "starves; one that rises to the top takes everything.",
        share_over_time,
        lambda evaluation: len(evaluation.history) > 0,
    ),
    Entry(
        "assignment_ratios",
        "How classes were divided up",
        "For each class, the part each member wanted by its loss alone, summed up to an epoch: how early members "
        "agree on whose a class is.",
        assignment_ratios,
        lambda evaluation: (
            evaluation.assignment_history is not None
            and evaluation.assignment_history.shape[1:] == (len(evaluation.groups), evaluation.members)
        ),
    ),
    Entry(
        "member_errors",
        "Each member's error",
        "Alone, a specialist is wrong about what is not its own: look at its own classes. The oracle error is what is "
        "left if the best member always answered, the top-1 error what the ensemble makes of it.",
        member_errors,
    ),
    Entry(
        "cross_entropy",
        "Cross-entropy, own and others'",
        "How surprised members are by the truth. Far apart: they know their own and keep out of the rest.",
        cross_entropy,
        lambda evaluation: evaluation.specialised,
        together=True,
    ),
    Entry(
        "auxiliary_density",
        "How probable “not mine” is",
        "The auxiliary class should have nothing of a member's own classes, and everything of others' and of unseen "
        "data.",
        auxiliary_density,
        lambda evaluation: evaluation.auxiliary and evaluation.specialised,
    ),
    Entry(
        "confidence_histograms",
        "Confidence",
        "The probability of the ensemble's answer: high where it is right, low where it is wrong or has never seen "
        "such a thing, if it can be trusted.",
        confidence_histograms,
    ),
    Entry(
        "reliability",
        "Reliability",
        "On the diagonal, an answer that is 80 % sure is right 80 times of 100; below it, the ensemble is too sure.",
        reliability,
        together=True,
    ),
    Entry(
        "risk_coverage",
        "Risk and coverage",
        "The error if only the surest answers are accepted: the faster it falls to the left, the more rejection helps.",
        risk_coverage,
        together=True,
    ),
    Entry(
        "unseen_roc",
        "Unseen data",
        "How well scores tell data of other kinds from the test set, from 50 (not at all) to 100.",
        unseen_roc,
        lambda evaluation: evaluation.unseen is not None,
        together=True,
    ),
    Entry(
        "grad_cam_grid",
        "Where members look",
        "Grad-CAM of every member for the true class, bright where it looks, on images that members differ on most. "
        "Above each: the member's probability of the truth. A frame marks whose the class is.",
        grad_cam_grid,
        lambda evaluation: evaluation.pictures and not evaluation.dense,
        to_float32=True,
    ),
    Entry(
        "overlays",
        "Masks",
        "Images that members differ on most: the truth, what each member says, and the ensemble. Orange is the "
        "foreground, green the auxiliary class; percent of wrong pixels above each.",
        lambda evaluation: overlays(evaluation.specialists, evaluation.examples),
        lambda evaluation: evaluation.dense,
        to_float32=True,
    ),
)


def draw(evaluations: Sequence[RunEvaluation], folder: str | Path, *, kind: str = "pdf") -> Iterator[Path]:
    """Write every figure that fits the runs into a folder, one file each; what cannot be drawn is left out."""
    known_name("format", kind, style.KINDS)
    for entry in FIGURES:
        for runs in entry.parts(evaluations):
            try:
                figure = entry.draw(*runs)
            except UsageError:
                continue
            run = f"{runs[0].name}-" if len(evaluations) > 1 and not entry.together else ""
            yield style.save(figure, Path(folder) / f"{run}{entry.name}.{kind}")
