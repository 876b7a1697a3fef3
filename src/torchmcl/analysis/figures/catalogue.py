from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.figures.assignment_matrix import assignment_matrix
from torchmcl.analysis.figures.assignment_ratios import assignment_ratios
from torchmcl.analysis.figures.auxiliary_density import auxiliary_density
from torchmcl.analysis.figures.confidence_histograms import confidence_histograms
from torchmcl.analysis.figures.confusion_matrix import confusion_matrix
from torchmcl.analysis.figures.cross_entropy import cross_entropy
from torchmcl.analysis.figures.grad_cam_grid import grad_cam_grid
from torchmcl.analysis.figures.hypotheses_over_input import hypotheses_over_input
from torchmcl.analysis.figures.hypothesis_shares import hypothesis_shares
from torchmcl.analysis.figures.learning_curves import learning_curves
from torchmcl.analysis.figures.member_errors import member_errors
from torchmcl.analysis.figures.overlays import overlays
from torchmcl.analysis.figures.predicted_against_true import predicted_against_true
from torchmcl.analysis.figures.reliability import reliability
from torchmcl.analysis.figures.risk_coverage import risk_coverage
from torchmcl.analysis.figures.share_over_time import share_over_time
from torchmcl.analysis.figures.unseen_roc import unseen_roc
from torchmcl.analysis.figures.voronoi_cells import voronoi_cells
from torchmcl.analysis.figures.who_knows_what import who_knows_what
from torchmcl.analysis.grad_cam import shows_regions
from torchmcl.analysis.regression_evaluation import RegressionEvaluation
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.errors import UsageError, known_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Evaluation = RunEvaluation | RegressionEvaluation


@dataclass(frozen=True)
class Entry:
    """A figure with its title, its description and the runs to which it applies."""

    name: str  # the name of the figure's file
    title: str  # the heading in the report
    description: str  # how to read the figure
    draw: "Callable[..., Figure]"
    applies: Callable[..., bool] = lambda evaluation: True
    joint: bool = False  # several runs share one figure
    wide: bool = False  # the figure needs the full width of a page
    same_y: bool = False  # the figures of several runs have the same y-axis
    min_width: int = 310  # in pixels, beside the figures of other runs

    def split(self, evaluations: Sequence[Evaluation]) -> list[tuple[Evaluation, ...]]:
        """Group the runs to which the figure applies, one group per figure."""
        applicable = [evaluation for evaluation in evaluations if self.applies(evaluation)]
        return [tuple(applicable)] if self.joint and applicable else [(evaluation,) for evaluation in applicable]

    def drawings(self, evaluations: Sequence[Evaluation]) -> "list[tuple[tuple[Evaluation, ...], Figure | UsageError]]":
        """Draw the figure for each group of runs, or return the error for a group for which this is not possible."""
        drawn: list[tuple[tuple[Evaluation, ...], Figure | UsageError]] = []
        for runs in self.split(evaluations):
            try:
                drawn.append((runs, self.draw(*runs)))
            except UsageError as error:
                drawn.append((runs, error))
        if self.same_y:
            style.share_y([figure for _, figure in drawn if not isinstance(figure, UsageError)])
        return drawn


def _has_epochs(evaluation: Evaluation) -> bool:
    return len(evaluation.history) > 0


def _has_labels(evaluation: RunEvaluation) -> bool:
    return not evaluation.dense and evaluation.examples.target.ndim == 1


FIGURES = (
    Entry(
        "learning_curves",
        "Learning curves",
        "The training loss, and the oracle and top-1 error on the validation split after each epoch. Losses of "
        "different methods have different terms, so compare only their course. A method with several phases changes "
        "its loss at the start of each.",
        learning_curves,
        _has_epochs,
        joint=True,
        wide=True,
    ),
    Entry(
        "who_knows_what",
        "Who knows what",
        "The probability that each member gives to the correct class, in percent, averaged over the test examples of "
        "the class (green), and to the auxiliary class “not mine” (orange). In an ordinary ensemble, every member "
        "knows every class. Among specialists, each class has K experts.",
        who_knows_what,
        _has_labels,
        wide=True,
        min_width=480,
    ),
    Entry(
        "confusion_matrix",
        "Confusion matrix",
        "Percentage of the test examples of each class (rows) for which the ensemble, and below it each member, "
        "predicts each class (columns). The last column of a member is the auxiliary class, if there is one. An orange "
        "frame marks the classes that a member owns.",
        confusion_matrix,
        _has_labels,
        wide=True,
        min_width=480,
    ),
    Entry(
        "assignment_matrix",
        "Assignment of classes",
        "Percentage of each class's training examples that each member took in the last epoch. A frame marks the "
        "members that own the class. With full specialisation, each row has K dark cells. Without specialisation, all "
        "cells of a row are equal.",
        assignment_matrix,
        lambda evaluation: evaluation.assigned is not None and evaluation.owners is not None,
    ),
    Entry(
        "share_over_time",
        "Share over time",
        "A member's share is the percentage of an epoch's assignments that go to the member. A share of 0 means that "
        "the member no longer learns. A share near the maximum means that the member takes almost every example.",
        share_over_time,
        _has_epochs,
        same_y=True,
    ),
    Entry(
        "assignment_ratios",
        "Assignment of classes over time",
        "The share of each class that each member would take up to an epoch if examples were assigned only by loss. "
        "The figure shows how early the members divide the classes among themselves.",
        assignment_ratios,
        lambda evaluation: (
            evaluation.assignment_history is not None
            and evaluation.assignment_history.shape[1:] == (len(evaluation.groups), evaluation.members)
        ),
    ),
    Entry(
        "member_errors",
        "Error of each member",
        "A specialist has a high error on classes that it does not own, so compare the members' errors on their own "
        "classes. The oracle error counts an example as wrong only if all members are wrong. The top-1 error is the "
        "error of the ensemble.",
        member_errors,
        same_y=True,
    ),
    Entry(
        "cross_entropy",
        "Cross-entropy on own and other classes",
        "The members' loss on the classes that they own and on all other classes. Two separate peaks mean that the "
        "members are specialised.",
        cross_entropy,
        lambda evaluation: evaluation.specialised,
        joint=True,
    ),
    Entry(
        "auxiliary_density",
        "Probability of the auxiliary class",
        "The auxiliary class is an additional output for examples that a member leaves to the others. Its probability "
        "should be near 0 on a member's own classes and near 1 on other classes and on unseen data.",
        auxiliary_density,
        lambda evaluation: evaluation.auxiliary and evaluation.specialised,
        same_y=True,
    ),
    Entry(
        "confidence_histograms",
        "Confidence",
        "The probability of the ensemble's prediction. It should be high for correct predictions and low for "
        "incorrect ones and for unseen data.",
        confidence_histograms,
        same_y=True,
    ),
    Entry(
        "reliability",
        "Reliability",
        "Accuracy at each level of confidence. On the diagonal, predictions with a confidence of 80 % are correct in "
        "80 % of cases. Below the diagonal, the ensemble is overconfident.",
        reliability,
        joint=True,
    ),
    Entry(
        "risk_coverage",
        "Risk and coverage",
        "The error if only the most confident predictions are accepted. The faster the error falls as fewer "
        "predictions are accepted (to the left), the more rejection helps.",
        risk_coverage,
        joint=True,
    ),
    Entry(
        "unseen_roc",
        "Detection of unseen data",
        "How well each score separates unseen data from the test set. An AUROC of 50 corresponds to "
        "chance, and 100 to perfect separation.",
        unseen_roc,
        lambda evaluation: evaluation.unseen is not None,
        joint=True,
    ),
    Entry(
        "grad_cam_grid",
        "Grad-CAM",
        "The image regions that each member uses for the target class, on images where the members differ most. The "
        "number above a map is the member's probability of the target class. A frame marks the members that "
        "own this class.",
        grad_cam_grid,
        lambda evaluation: (
            evaluation.has_images and not evaluation.dense and shows_regions(evaluation.specialists) is not False
        ),
        wide=True,
    ),
    Entry(
        "overlays",
        "Masks",
        "The target mask, the mask of each member and the mask of the ensemble, on images where the members differ "
        "most. Orange marks the foreground, and green marks the auxiliary class. The number above "
        "a mask is the percentage of wrong pixels.",
        lambda evaluation: overlays(evaluation.specialists, evaluation.examples),
        lambda evaluation: evaluation.dense,
        wide=True,
    ),
)


REGRESSION_FIGURES = (
    Entry(
        "hypotheses_over_input",
        "Hypotheses over the input",
        "Each colour is the hypothesis of one member. It is pale where its score is low. Points are test targets, and "
        "the dashed line is the mean of the hypotheses. Where the targets have several modes, the hypotheses should "
        "follow them, and the mean lies in between. A hypothesis that is far from all targets lies outside.",
        hypotheses_over_input,
        lambda evaluation: evaluation.examples.images.shape[1:] == (1,),
    ),
    Entry(
        "voronoi_cells",
        "Voronoi cells",
        "For four test examples, the regions of the targets that are closest to each hypothesis. Distances are "
        "measured in standard deviations of each target value. The area of a point shows the score of its hypothesis, "
        "and a cross marks the target. A hypothesis that is far from all targets lies outside.",
        voronoi_cells,
        lambda evaluation: evaluation.task.targets == 2,
        wide=True,
    ),
    Entry(
        "predicted_against_true",
        "Predicted against true values",
        "The mean of the hypotheses and the hypothesis closest to the target. On the line, the prediction is exact. If "
        "only the best hypothesis is near the line, the targets have several modes that the mean cannot represent.",
        predicted_against_true,
    ),
    Entry(
        "learning_curves",
        "Learning curves",
        "The loss is computed with standardised targets. The oracle RMSE is the error of the best hypothesis, and the "
        "RMSE is that of the mean. A method that anneals its assignment changes the loss until its schedule ends.",
        learning_curves,
        _has_epochs,
        joint=True,
        wide=True,
    ),
    Entry(
        "share_over_time",
        "Share over time",
        "A member's share is the percentage of an epoch's assignments that go to the member. A share of 0 means that "
        "the member no longer learns.",
        share_over_time,
        _has_epochs,
        same_y=True,
    ),
    Entry(
        "hypothesis_shares",
        "Shares of the hypotheses",
        "How often each member took a training example, how often its hypothesis is the closest one on the test set, "
        "and its mean score. A hypothesis that is never the closest is of no use. With well calibrated scores, the "
        "last two bars are equally high.",
        hypothesis_shares,
        same_y=True,
    ),
)


def figures_of(evaluations: Sequence[Evaluation]) -> tuple[Entry, ...]:
    """Return the figures for runs that predict classes, or for runs that predict numbers.

    Raises:
        UsageError: if there are runs of both kinds.
    """
    continuous = {isinstance(evaluation, RegressionEvaluation) for evaluation in evaluations}
    if len(continuous) > 1:
        raise UsageError("Cannot compare runs that predict classes with runs that predict numbers. Choose one kind.")
    return REGRESSION_FIGURES if continuous == {True} else FIGURES


def draw(evaluations: Sequence[Evaluation], folder: str | Path, *, kind: str = "pdf") -> Iterator[Path]:
    """Write all figures that apply to the runs into a folder. Figures that cannot be drawn are skipped."""
    known_name("format", kind, style.FORMATS)
    for entry in figures_of(evaluations):
        for runs, figure in entry.drawings(evaluations):
            if isinstance(figure, UsageError):
                continue
            run = f"{runs[0].name}-" if len(evaluations) > 1 and not entry.joint else ""
            yield style.save(figure, Path(folder) / f"{run}{entry.name}.{kind}")
