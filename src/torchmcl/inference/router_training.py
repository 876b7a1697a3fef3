"""Training of the router, which predicts the members that own the class of an example."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from torchmcl._utils.randomness import isolated, seed_of
from torchmcl._utils.validation import validate_types
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.loader import Loader
from torchmcl.ensemble import Ensemble
from torchmcl.ensemble.router import Router, RouterConfig, router_inputs
from torchmcl.errors import UsageError
from torchmcl.inference.features import feature_loader
from torchmcl.inference.inputs import labelled_batches
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.routing import check_method
from torchmcl.objectives.dataset_pass import evaluating

BATCH, WEIGHT_DECAY = 128, 0.05


@dataclass(frozen=True)
class RouterMetrics:
    """How well a router finds the owners of examples.

    Attributes:
        examples: number of examples
        missed: for n = 1 to M, the fraction of the examples whose class none of the n most likely owners owns
    """

    examples: int
    missed: tuple[float, ...]


def owners_of(specialists: Specialists) -> Tensor:
    """Return which members own each class, bool (classes, M): by the memory, or by the training examples they took.

    Raises:
        UsageError: if no member owns a class, or if the owners are not stored with the model.
    """
    check_method(method := specialists.method)
    shape = (method.classes, method.members)
    taken = torch.tensor(specialists.metrics.get("assigned", ()), dtype=torch.float32)
    memory = specialists.memory
    if memory is not None and memory.flags.shape != shape:
        memory = None  # it counts groups
    owners = method.owners(memory, taken if taken.shape == shape else None)
    if owners is None or not bool(owners.any()):
        raise UsageError(
            f"The owners of the classes are unknown: the model has neither a fixed memory nor the number of examples "
            f"that each of the {method.members} members took. Choose the folder of a finished run."
        )
    return owners


def train_router(
    specialists: Specialists,
    train: Any,
    *,
    validation: Any = None,
    width: int = 16,
    epochs: int = 10,
    learning_rate: float = 0.005,
    seed: int = 0,
) -> RouterMetrics:
    """Train a router and add it to the model; the members do not change. `Specialists.save` stores it.

    The target of an example is the distribution that gives each owner of its class the same probability. The loss is
    the cross-entropy, minimised by AdamW with one cycle of the learning rate.

    Args:
        specialists: the model, which must know the owners of its classes
        train: labelled training examples in any form that `calibrate` accepts; those of the members will do
        validation: labelled examples for the returned metrics; by default, the training examples
        width: width of the router; see `RouterConfig`
        epochs: number of passes over the training examples
        learning_rate: the highest learning rate
        seed: seed of the initial weights and the order of the examples

    Raises:
        UsageError: if members own no classes, their owners are unknown, or an argument is out of range.

    >>> from torchmcl.training import fit
    >>> from torchmcl.data import load
    >>> digits = load("digits")
    >>> specialists = fit("smcl", "mlp", digits, members=2, epochs=2, width=8, verbose=False)
    >>> metrics = train_router(specialists, digits.train, epochs=2)
    >>> specialists.predict(digits.test, query=1).queried.sum(0).unique()
    tensor([1])
    """
    validate_types(locals(), train_router)
    if epochs < 1 or not learning_rate > 0 or seed < 0:
        raise UsageError(
            f"Expected epochs >= 1, learning_rate > 0 and seed >= 0, got {epochs}, {learning_rate} and {seed}."
        )
    owners = owners_of(specialists).to(specialists.device)
    examples = _examples(specialists, train.train if isinstance(train, DataSet) else train)
    model_config, ensemble = specialists.model_config, specialists.ensemble
    blank = torch.zeros(1, *model_config.shape, dtype=getattr(torch, model_config.dtype))
    with evaluating(ensemble), torch.no_grad():
        config = RouterConfig.of(ensemble, specialists.to_input(blank), width)
    with isolated():
        torch.manual_seed(seed_of(seed, specialists.method.members))
        router = config.build(specialists.method.members).to(specialists.device)
    options: dict[str, Any] = {"shuffle": True, "seed": seed, "batch_size": BATCH}
    with feature_loader(specialists, examples, **options) as loader:
        _fit(router, ensemble, loader, owners, epochs, learning_rate)
    specialists.router, specialists.model_config = router, replace(model_config, router=config)
    return evaluate_router(specialists, examples if validation is None else _examples(specialists, validation))


@torch.no_grad()
def evaluate_router(specialists: Specialists, examples: Examples) -> RouterMetrics:
    """Return how well the router of a model finds the owners of labelled examples."""
    router, owners = specialists.router, owners_of(specialists).to(specialists.device)
    assert router is not None
    found = []
    with feature_loader(specialists, examples) as loader, evaluating(specialists.ensemble), evaluating(router):
        for batch in loader:
            order = router(router_inputs(specialists.ensemble, batch.x)).argsort(dim=0, descending=True, stable=True)
            found.append(owners[batch.target].T.gather(0, order).cumsum(0) > 0)
    hits = torch.cat(found, dim=1).double().mean(1)
    return RouterMetrics(len(examples), tuple((1 - hits).tolist()))


def _examples(specialists: Specialists, given: Any) -> Examples:
    """Return the examples whose label is not ignored; read them into memory unless they are `Examples`."""
    given = given.examples if isinstance(given, Loader) else given
    pairs = labelled_batches(given, specialists.model_config, specialists.batch_size)
    if isinstance(given, Examples):
        next(pairs)  # raises UsageError if the classes or the shape differ from those of the model
        examples = given
    else:
        if not (parts := list(pairs)):
            raise UsageError("Expected at least one labelled example, got none.")
        x, target = (torch.cat(part) for part in zip(*parts, strict=True))
        examples = Examples(x, target, specialists.classes)
    counted = specialists.method.task.counted(examples.target)
    return examples if counted is None else examples.subset(counted.nonzero()[:, 0])


def _fit(router: Router, ensemble: Ensemble, loader: Loader, owners: Tensor, epochs: int, learning_rate: float) -> None:
    """Train a router on the owners of each class, bool (classes, M)."""
    share = owners / owners.sum(1, keepdim=True).clamp_min(1)  # 0 for a class without an owner
    optimizer = torch.optim.AdamW(router.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY)
    schedule = OneCycleLR(optimizer, learning_rate, total_steps=epochs * len(loader))
    router.train()
    with evaluating(ensemble):
        for epoch in range(1, epochs + 1):
            for batch in loader.epoch(epoch):
                with torch.no_grad():
                    inputs = router_inputs(ensemble, batch.x)
                weight = share[batch.target] if batch.weight is None else share[batch.target] * batch.weight[:, None]
                probability = router(inputs).T.clamp_min(torch.finfo(torch.float32).tiny)
                loss = -(weight * probability.log()).sum() / len(batch.target)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
    router.eval()
