"""Additional records of a trained ensemble, for studies that need more than its metrics."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import data as data_sets
from torchmcl.analysis import recorder
from torchmcl.analysis.density import MAX_CROSS_ENTROPY, bin_counts
from torchmcl.analysis.evaluation import separation
from torchmcl.assignment import top_k
from torchmcl.data import samples
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import convert_images
from torchmcl.errors import UsageError
from torchmcl.inference import calibrate as calibration
from torchmcl.inference import rejection
from torchmcl.inference.feature_scores import UnseenScore, fit_feature_scores
from torchmcl.inference.features import feature_loader
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.rejection import apply_temperature, fit_temperature
from torchmcl.metrics import auroc, nll
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.structures.rejection import Rejection
from torchmcl.studies.cost import in_networks
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import pack_bytes
from torchmcl.tasks import Regression
from torchmcl.tasks.labels import percent
from torchmcl.training.evaluate import evaluate, evaluation_batches
from torchmcl.training.run_folder import ASSIGNMENT_HISTORY, read_assignment_history

COVERAGES = (80, 90, 95)  # percent, of the record `selective`


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained ensemble with its metrics and predictions on some examples of the data of its run.

    `wrong` holds the errors of the ensemble and of each member, (1 + M, N); for numbers to predict, the squared errors
    of the ensemble and of the best hypothesis, (2, N). For labelled images, `members` holds the probabilities of the
    members, (M, N, C or C + 1), and `combined` holds those of the ensemble, (N, C). `run` is the run folder, or None if
    only the weights are stored.
    """

    specialists: Specialists
    spec: Spec
    data: DataSet
    examples: Examples
    run: Path | None
    metrics: dict[str, Any]
    wrong: Tensor
    members: Tensor | None = None
    combined: Tensor | None = None


def confidence(trained: Trained, argument: str) -> dict[str, Any]:
    """Compute, for each class, a histogram of the ensemble's probability of the true class, from 0 to 1."""
    target = trained.examples.target
    probability = require_labels(trained.combined).gather(1, target[:, None])[:, 0]
    return {name: bin_counts(probability[target == c]) for c, name in enumerate(trained.examples.classes)}


def auxiliary(trained: Trained, argument: str) -> dict[str, Any]:
    """Compute statistics of the cross-entropy on members' own classes and on other members' classes.

    For methods with an auxiliary class, also compute statistics of the auxiliary probability, including on unseen data.
    `argument` names the unseen data; see `unseen_examples`.
    """
    members, target = require_labels(trained.members), trained.examples.target
    own = owners(trained)[target].T  # (M, N)
    entropy = -members.gather(2, target[None, :, None].expand(len(members), -1, 1))[:, :, 0].clamp_min(1e-12).log()
    record: dict[str, Any] = {
        "cross_entropy": {
            name: {"histogram": bin_counts(part, MAX_CROSS_ENTROPY), "mean": round(float(part.mean()), 4)}
            for name, part in (("own", entropy[own]), ("others'", entropy[~own]))
        }
    }
    if trained.specialists.method.auxiliary:
        unseen = recorder.record(trained.specialists, unseen_examples(argument)).get("auxiliary").T
        seen = members[:, :, -1]
        parts = {"own": seen[own], "others'": seen[~own], "unseen": unseen.flatten()}
        record["auxiliary"] = {
            name: {"histogram": bin_counts(part), "median": round(float(part.median()), 4)}
            for name, part in parts.items()
        }
        # Measures how well the members' smallest auxiliary probability separates unseen images from test images.
        record["auroc"] = round(100 * float(auroc(seen.amin(0), unseen.amin(0))), 2)
    return record


def unseen(trained: Trained, argument: str, *, features: bool = True) -> dict[str, Any]:
    """Compute how well each score separates unseen data from the test set; `argument` is that of `unseen_examples`."""
    seen, other = scored(trained, features=features), scored(trained, argument, features=features)
    return {name: separation(seen.get(name), other.get(name)) for name in seen.scores}


def scored(trained: Trained, unseen: str = "", *, features: bool = True) -> recorder.Recorder:
    """Return the scores of the test set, or of unseen data, with those that learn from features or without them."""
    if not unseen:
        return _seen(trained, features)
    examples, shape = unseen_examples(unseen), trained.specialists.model_config.shape
    examples = replace(examples, images=convert_images(examples.images, shape))
    return recorder.record(trained.specialists, examples, fitted=_fitted(trained) if features else None)


@lru_cache(maxsize=1)  # several records of a run need them
def _fitted(trained: Trained) -> dict[str, UnseenScore]:
    return fit_feature_scores(trained.specialists, trained.data.train)


@lru_cache(maxsize=1)
def _seen(trained: Trained, features: bool) -> recorder.Recorder:
    fitted = _fitted(trained) if features else None
    return recorder.record(trained.specialists, trained.examples, trained.examples.target, fitted)


def selective(trained: Trained, argument: str) -> dict[str, Any]:
    """Compute errors and shares of accepted answers, in percent, with thresholds for 80, 90 and 95 % of the answers.

    The thresholds are chosen on the validation split: on the confidence and, for a method with an auxiliary class, also
    on claim and confidence, as `calibrate` does. `coverage` and `error` are those of the test set, and `unseen` is the
    share of unseen examples that are accepted; `argument` names the unseen data. `joint` is the error if an equal
    number of test examples and unseen examples is given, and every accepted answer to an unseen example is wrong.
    """
    specialists, held = trained.specialists, trained.data.validation
    method, task = specialists.method, specialists.method.task
    if held is None:
        raise UsageError("The record selective needs a validation split. Set data_validation in the Spec.")
    with feature_loader(specialists, held) as loader:
        batches = [(output, batch.target) for batch, output in outputs(specialists.ensemble, loader)]
    values, target = calibration.collect(method, batches)
    combined = torch.cat([method.combine(output).cpu() for output, _ in batches])
    seen, other = scored(trained), scored(trained, argument)
    record: dict[str, Any] = {"confidence": {}, **({"claims": {}} if method.auxiliary else {})}
    for coverage in COVERAGES:
        rules = {"confidence": rejection.calibrate(combined, target, coverage=coverage / 100)}
        if method.auxiliary:
            rules["claims"] = calibration.calibrate(task, values, target, method=method, coverage=coverage / 100)[2]
        for name, rule in rules.items():
            record[name][str(coverage)] = accepted_answers(rule, seen, other)
    return record


def accepted_answers(rule: Rejection, seen: recorder.Recorder, other: recorder.Recorder) -> dict[str, float | None]:
    """Return the values of the record `selective` for one rule."""
    accepted, foreign = (
        rule.accepts(one.get("confidence"), rule.claims(1 - one.get("smallest_auxiliary")))
        if rule.claim_threshold is not None
        else rule.accepts(one.get("confidence"))
        for one in (seen, other)
    )
    coverage, unseen = accepted.double().mean(), foreign.double().mean()
    wrong = (seen.get("wrong").double() * accepted).mean()
    joint = (wrong + unseen) / (coverage + unseen)
    return {
        "coverage": percent(coverage),
        "error": percent(wrong / coverage) if coverage else None,
        "unseen": percent(unseen),
        "joint": percent(joint) if coverage + unseen else None,
    }


def flow(trained: Trained, argument: str) -> list[Any]:
    """Return the loss-based assignments of each class to each member in each epoch, (epochs, classes, M)."""
    history = None if trained.run is None else read_assignment_history(trained.run)
    if history is None:
        raise UsageError(f"There is no {ASSIGNMENT_HISTORY} in {trained.run}. Train the run again.")
    return history.round(4).tolist()


def top_m(trained: Trained, argument: str) -> float:
    """Compute the percentage of examples whose class is not among the M most probable ones.

    `argument` is M; by default, M is the number of members.
    """
    combined, target = require_labels(trained.combined), trained.examples.target
    likely = combined.topk(min(int(argument or len(require_labels(trained.members))), combined.shape[1])).indices
    return percent((likely != target[:, None]).all(1).double().mean())


@torch.no_grad()
def training(trained: Trained, argument: str) -> dict[str, Any]:
    """Compute errors on the training set, in percent: `top1_error` of the ensemble, `own_error` of its members.

    `own_error` is the error of all members, and `own_errors` that of each member, on the examples assigned to it: by
    the memory if it is fixed, otherwise by the smallest cross-entropy after training. A member without examples has
    None. For masks, only `top1_error` is computed.
    """
    specialists, examples = trained.specialists, trained.data.train
    method, memory = specialists.method, specialists.memory
    wrong, own, top1 = [], [], []
    with feature_loader(specialists, examples) as loader:
        if examples.target.ndim > 1:
            return {"top1_error": evaluate(method, specialists.ensemble, loader)["top1_error"]}
        for batch in evaluation_batches(method, specialists.ensemble, loader):
            logits, target = batch.output.logits, batch.target
            if memory is not None and memory.fixed:
                taken = memory.flags.to(target.device)[target].T
            else:
                index = target[None, :, None].expand(len(logits), -1, 1)
                taken = top_k(logits.float().log_softmax(2).gather(2, index)[:, :, 0], method.k, dim=0)
            wrong.append((logits[:, :, : method.classes].argmax(2) != target).cpu())
            own.append(taken.cpu())
            top1.append((batch.combined.argmax(1) != target).cpu())
    errors, taken = torch.cat(wrong, 1), torch.cat(own, 1)
    return {
        "top1_error": percent(torch.cat(top1).double().mean()),
        "own_error": percent(errors[taken].double().mean()),
        "own_errors": [percent(a[b].double().mean()) if b.any() else None for a, b in zip(errors, taken, strict=True)],
    }


def cost(trained: Trained, argument: str) -> float:
    """Compute the operations per training step in units of one network that is trained alone."""
    return round(in_networks(trained.spec), 3)


@torch.no_grad()
def calibrated(trained: Trained, argument: str) -> dict[str, float]:
    """Compute the NLL on the test set with the temperature of the ensemble that is best on the validation split."""
    specialists, validation = trained.specialists, trained.data.validation
    if validation is None:
        raise UsageError("The record calibrated needs a validation split. Set data_validation in the Spec.")
    with feature_loader(specialists, validation) as loader:
        batches = list(evaluation_batches(specialists.method, specialists.ensemble, loader))
    predicted, target = (torch.cat([getattr(one, name).cpu() for one in batches]) for name in ("combined", "target"))
    temperature = fit_temperature(predicted, target)
    tested = apply_temperature(require_labels(trained.combined), temperature)
    return {"temperature": round(temperature, 4), "nll": round(float(nll(tested, trained.examples.target)), 6)}


def grad_cam(trained: Trained, argument: str) -> list[dict[str, Any]]:
    """Compute the members' Grad-CAM maps (uint8) for the first test image of each of the first `argument` classes."""
    from torchmcl.analysis.grad_cam import grad_cam as maps_of

    examples, owned = trained.examples, owners(trained)
    first = [int((examples.target == c).nonzero()[0, 0]) for c in range(min(int(argument), len(examples.classes)))]
    chosen = examples.subset(first)
    images = chosen.images[torch.arange(len(chosen))]
    maps = (255 * maps_of(trained.specialists, images, chosen.target)).round().to(torch.uint8)
    members = require_labels(trained.members)[:, first]
    return [
        {
            "class": examples.classes[label],
            "image": pack_bytes(images[index].numpy()),
            "maps": pack_bytes(maps[:, index].numpy()),
            "truth": [round(p, 4) for p in members[:, index, label].tolist()],
            "own": owned[label].int().tolist(),
        }
        for index, label in enumerate(chosen.target.tolist())
    ]


@torch.no_grad()
def hypotheses(trained: Trained, argument: str) -> list[dict[str, Any]]:
    """Return the hypotheses and their scores for `argument` evenly spaced examples."""
    specialists, examples = trained.specialists, trained.examples
    index = torch.linspace(0, len(examples) - 1, int(argument)).round().long()
    inputs, task = examples.images[index], specialists.method.task
    if not isinstance(task, Regression):
        raise UsageError("The record hypotheses needs numbers to predict. Remove the record from the Spec.")
    output = specialists.forward(inputs)
    return [
        {name: rounded(part) for name, part in (("input", x), ("hypotheses", found), ("scores", score))}
        for x, found, score in zip(
            inputs, task.hypotheses(output).unbind(1), task.scores(output).unbind(1), strict=True
        )
    ]


def rounded(values: Tensor) -> Any:
    """Return numbers as nested lists with four digits after the decimal point."""
    return (values.double() * 1e4).round().div(1e4).tolist()


def owners(trained: Trained) -> Tensor:
    """Return which members own each class, (classes, M), based on the memory or on the last epoch's assignments."""
    specialists = trained.specialists
    owned = specialists.method.owners(specialists.memory, torch.tensor(specialists.metrics["assigned"]))
    assert owned is not None
    return owned


def unseen_examples(name: str) -> Examples:
    """Return the test set of unseen data.

    Args:
        name: a data set such as svhn, a sample such as svhn-10000, or digits/7,8,9 for classes that were left out of
            training
    """
    data, _, classes = name.partition("/")
    sample = data if data in samples.names() else None
    data = data.rpartition("-")[0] if sample else data
    return data_sets.load(data, classes=classes or None, sample=sample, parts=("test",)).test


def require_labels(probabilities: Tensor | None) -> Tensor:
    """Return `probabilities`, or raise UsageError if it is None because the examples have masks."""
    if probabilities is None:
        raise UsageError("This record needs one label per image, got masks. Remove the record from the Spec.")
    return probabilities


RECORDS: dict[str, Callable[[Trained, str], Any]] = {
    "confidence": confidence,
    "auxiliary": auxiliary,
    "unseen": unseen,
    "unseen_outputs": partial(unseen, features=False),
    "selective": selective,
    "flow": flow,
    "grad_cam": grad_cam,
    "top_m": top_m,
    "training": training,
    "cost": cost,
    "calibrated": calibrated,
    "hypotheses": hypotheses,
}
