"""What a study may ask of a trained ensemble besides the usual, small enough to be stored."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import data as sets
from torchmcl.analysis.density import MAX_CROSS_ENTROPY, bin_counts
from torchmcl.data.examples import Examples
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.metrics import auroc
from torchmcl.studies.store import pack_bytes
from torchmcl.training.run_folder import ASSIGNMENT_HISTORY, read_assignment_history


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained ensemble and its answers to the test set: errors `wrong` (1 + M, N), the ensemble first.

    Of labelled images also the probabilities of `members` (M, N, C or C + 1) and `combined` (N, C).
    """

    specialists: Specialists
    examples: Examples
    run: Path
    metrics: dict[str, Any]
    wrong: Tensor
    members: Tensor | None = None
    combined: Tensor | None = None


def confidence(trained: Trained, argument: str) -> dict[str, Any]:
    """Histogram of the probability that the ensemble gives to the truth, for each class, over 0 to 1."""
    target = trained.examples.target
    truth = labelled(trained.combined).gather(1, target[:, None])[:, 0]
    return {name: bin_counts(truth[target == c]) for c, name in enumerate(trained.examples.classes)}


def auxiliary(trained: Trained, argument: str) -> dict[str, Any]:
    """Auxiliary probability and cross-entropy on classes that are a member's own and on others', and on unseen data.

    A class is the members' that the memory says, or that took it most in the last epoch. `argument` names the unseen
    data: svhn, or digits/7,8,9 of classes that were not trained on.
    """
    members, target = labelled(trained.members), trained.examples.target
    own = owners(trained)[target].T  # (M, N)
    entropy = -members.gather(2, target[None, :, None].expand(len(members), -1, 1))[:, :, 0].clamp_min(1e-12).log()
    said: dict[str, Any] = {
        "cross_entropy": {
            name: {"histogram": bin_counts(part, MAX_CROSS_ENTROPY), "mean": round(float(part.mean()), 4)}
            for name, part in (("own", entropy[own]), ("others'", entropy[~own]))
        }
    }
    if trained.specialists.method.auxiliary:
        unseen = foreign(trained.specialists, argument)
        seen = members[:, :, -1]
        parts = {"own": seen[own], "others'": seen[~own], "unseen": unseen.flatten()}
        said["auxiliary"] = {
            name: {"histogram": bin_counts(part), "median": round(float(part.median()), 4)}
            for name, part in parts.items()
        }
        # How well the least auxiliary probability of all members tells unseen images from test images.
        said["auroc"] = round(100 * float(auroc(seen.amin(0), unseen.amin(0))), 2)
    return said


def flow(trained: Trained, argument: str) -> list[Any]:
    """What members wanted of each class in each epoch, (epochs, classes, M)."""
    kept = read_assignment_history(trained.run)
    if kept is None:
        raise UsageError(
            f"Expected {ASSIGNMENT_HISTORY} in {trained.run}, which a training leaves, got none. Train it again."
        )
    return kept.round(4).tolist()


def grad_cam(trained: Trained, argument: str) -> list[dict[str, Any]]:
    """Grad-CAM of every member for the first test image of each of the first `argument` classes, 0 to 255."""
    from torchmcl.analysis.grad_cam import grad_cam as maps_of

    examples, whose = trained.examples, owners(trained)
    first = [int((examples.target == c).nonzero()[0, 0]) for c in range(min(int(argument), len(examples.classes)))]
    few = examples.subset(first)
    images = few.images[torch.arange(len(few))]
    maps = (255 * maps_of(trained.specialists, images, few.target)).round().to(torch.uint8)
    members = labelled(trained.members)[:, first]
    return [
        {
            "class": examples.classes[int(few.target[at])],
            "image": pack_bytes(images[at].numpy()),
            "maps": pack_bytes(maps[:, at].numpy()),
            "truth": [round(p, 4) for p in members[:, at, int(few.target[at])].tolist()],
            "own": whose[few.target[at]].int().tolist(),
        }
        for at in range(len(few))
    ]


def owners(trained: Trained) -> Tensor:
    """Which members own each class, (classes, M), see `Method.owners`."""
    specialists = trained.specialists
    taken = torch.tensor(specialists.metrics["assigned"])
    found = specialists.method.owners(specialists.memory, taken)
    assert found is not None
    return found


def foreign(specialists: Specialists, name: str) -> Tensor:
    """Auxiliary probabilities on data that nobody was trained on, (M, N)."""
    data, _, classes = name.partition("/")
    unseen = sets.load(data, classes=classes or None, parts=("test",)).test
    answer = specialists.predict(unseen.images[torch.arange(len(unseen))])
    return answer.members[:, :, -1]


def labelled(probabilities: Tensor | None) -> Tensor:
    """Probabilities, which masks have not."""
    if probabilities is None:
        raise UsageError("Expected labelled images to record this of, got masks.")
    return probabilities


RECORDS: dict[str, Callable[[Trained, str], Any]] = {
    "confidence": confidence,
    "auxiliary": auxiliary,
    "flow": flow,
    "grad_cam": grad_cam,
}
