"""Routed inference of runs: training the router of a run, and comparing routed with unrouted answers."""

from pathlib import Path
from typing import Any

import torch

from torchmcl import metrics
from torchmcl.data.examples import Examples
from torchmcl.errors import UsageError
from torchmcl.inference.answers import Answer
from torchmcl.inference.features import feature_loader
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.router_training import owners_of, train_router
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.serialization.data_config import load_run_data
from torchmcl.tasks.labels import percent


def route_run(run: Path, **options: Any) -> dict[str, Any]:
    """Train a router on the training split of a run and save it with the model.

    Args:
        run: the folder of the run
        options: the options of `train_router`

    Returns:
        `run`, the number of `parameters` of the router, the `split` and the number of `examples` on which it was
        evaluated, and `missed`, in percent; see `RouterMetrics`.
    """
    specialists = Specialists.load(run)
    owners_of(specialists)  # raises UsageError before the data is read
    data = load_run_data(run, "train", "validation")[1]
    found = train_router(specialists, data.train, validation=data.validation, **options)
    specialists.save(run)
    assert specialists.router is not None
    return {
        "run": str(run),
        "parameters": sum(weight.numel() for weight in specialists.router.parameters()),
        "split": "training" if data.validation is None else "validation",
        "examples": found.examples,
        "missed": [percent(torch.tensor(value)) for value in found.missed],
    }


def evaluate_routing(
    specialists: Specialists, examples: Examples, query: int, budget: int | None = None
) -> dict[str, Any]:
    """Evaluate the answers of the queried members on labelled examples.

    Args:
        specialists: the model
        examples: labelled examples
        query: number of members to query per example; see `Specialists.predict`
        budget: largest number of members to query per example

    Returns:
        `query` and `budget`; `queried`, the mean number of members that were queried; the `top1_error`, `ece` (percent)
        and `nll` of the answers; `unclaimed`, for a method with an auxiliary class, and `missed`, if the owners are
        known: the percentage of the examples of which no queried member owns the class.
    """
    routed = specialists.routed(query, budget)
    with feature_loader(specialists, examples) as loader:
        if routed is None:
            answers = (specialists.postprocess(output) for _, output in outputs(specialists.ensemble, loader))
        else:
            answers = (answer for _, answer in outputs(routed, loader))
        answer = Answer.cat([answer.to("cpu") for answer in answers])
    target = examples.target.long()
    if (labelled := specialists.method.task.counted(target)) is not None:
        answer, target = answer.subset(labelled.nonzero()[:, 0]), target[labelled]
    p, queried = answer.probabilities, answer.queried
    if queried is None:
        queried = torch.ones(specialists.method.members, len(target), dtype=torch.bool)
    found: dict[str, Any] = {
        "query": query,
        "budget": query if routed is None else routed.query.budget,
        "queried": round(float(queried.sum(0).double().mean()), 4),
        "top1_error": percent(metrics.top1_error(p, target)),
        "ece": percent(metrics.ece(p, target)),
        "nll": round(float(metrics.nll(p, target)), 6),
    }
    if specialists.method.auxiliary:
        found["unclaimed"] = percent(1 - answer.claimed.double().mean())
    try:
        owned = owners_of(specialists)[target].T
    except UsageError:  # a saved model without the metrics of its training
        return found
    return {**found, "missed": percent(1 - (owned & queried).any(0).double().mean())}
