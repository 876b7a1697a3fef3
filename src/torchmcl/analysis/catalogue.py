from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchmcl.analysis.assignment_matrix import assignment_matrix
from torchmcl.analysis.assignment_ratios import assignment_ratios
from torchmcl.analysis.auxiliary_density import auxiliary_density
from torchmcl.analysis.confidence_histograms import confidence_histograms
from torchmcl.analysis.cross_entropy import cross_entropy
from torchmcl.analysis.grad_cam_grid import grad_cam_grid
from torchmcl.analysis.look import Look
from torchmcl.analysis.member_errors import member_errors
from torchmcl.analysis.overlays import overlays
from torchmcl.analysis.reliability import reliability
from torchmcl.analysis.risk_coverage import risk_coverage
from torchmcl.analysis.share_over_time import share_over_time
from torchmcl.analysis.unseen_roc import unseen_roc

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Entry:
    """A figure: what it is called, what it tells, of which runs it can be drawn, and how.

    Where `together`, several runs go into one figure; else each has its own. A `wide` one needs a whole page.
    """

    title: str
    meaning: str
    draw: "Callable[..., Figure]"
    fits: Callable[[Look], bool] = lambda look: True
    together: bool = False
    wide: bool = False

    @property
    def name(self) -> str:
        """Of its function, and of its files."""
        return self.draw.__name__

    def parts(self, looks: Sequence[Look]) -> list[tuple[Look, ...]]:
        """The runs that it fits, as they go into figures: all into one, or each into its own."""
        fitting = [look for look in looks if self.fits(look)]
        return [tuple(fitting)] if self.together and fitting else [(look,) for look in fitting]


def _overlays(look: Look) -> "Figure":
    return overlays(look.specialists, look.examples)


_overlays.__name__ = "overlays"

FIGURES = (
    Entry(
        "Who took which class",
        "Percent of each class's training examples that each member took in the last epoch. A frame marks whose the "
        "class is. One dark cell a row is full specialisation; even rows are none.",
        assignment_matrix,
        lambda look: look.assigned is not None and look.owners is not None,
    ),
    Entry(
        "Share over time",
        "Percent of all assignments that each member took in each epoch. A line that falls to 0 is a member that "
        "starves; one that rises to the top takes everything.",
        share_over_time,
        lambda look: len(look.history) > 0,
    ),
    Entry(
        "How classes were divided up",
        "For each class, the part each member wanted by its loss alone, summed up to an epoch: how early members "
        "agree on whose a class is.",
        assignment_ratios,
        lambda look: look.flow is not None and look.flow.shape[1:] == (len(look.groups), look.members),
    ),
    Entry(
        "Each member's error",
        "Alone, a specialist is wrong about what is not its own: look at its own classes. The oracle error is what is "
        "left if the best member always answered, the top-1 error what the ensemble makes of it.",
        member_errors,
    ),
    Entry(
        "Cross-entropy, own and others'",
        "How surprised members are by the truth. Far apart: they know their own and keep out of the rest.",
        cross_entropy,
        lambda look: look.specialised,
        together=True,
    ),
    Entry(
        "How probable “not mine” is",
        "The auxiliary class should have nothing of a member's own classes, and everything of others' and of unseen "
        "data.",
        auxiliary_density,
        lambda look: look.auxiliary and look.specialised,
    ),
    Entry(
        "Confidence",
        "The probability of the ensemble's answer: high where it is right, low where it is wrong or has never seen "
        "such a thing, if it can be trusted.",
        confidence_histograms,
    ),
    Entry(
        "Reliability",
        "On the diagonal, an answer that is 80 % sure is right 80 times of 100; below it, the ensemble is too sure.",
        reliability,
        together=True,
    ),
    Entry(
        "Risk and coverage",
        "The error if only the surest answers are accepted: the faster it falls to the left, the more rejection helps.",
        risk_coverage,
        together=True,
    ),
    Entry(
        "Unseen data",
        "How well scores tell data of other kinds from the test set, from 50 (not at all) to 100.",
        unseen_roc,
        lambda look: look.unseen is not None,
        together=True,
    ),
    Entry(
        "Where members look",
        "Grad-CAM of every member for the true class, bright where it looks, on images that members differ on most. "
        "Above each: the member's probability of the truth. A frame marks whose the class is.",
        grad_cam_grid,
        lambda look: look.pictures and not look.dense,
        wide=True,
    ),
    Entry(
        "Masks",
        "Images that members differ on most: the truth, what each member says, and the ensemble. Orange is the "
        "foreground, green the auxiliary class; percent of wrong pixels above each.",
        _overlays,
        lambda look: look.dense,
        wide=True,
    ),
)
