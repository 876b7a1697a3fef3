from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchmcl.ensemble import Ensemble
from torchmcl.ensemble.exchange import Separate
from torchmcl.structures.output import Opinions
from torchmcl.structures.state import State


def lean_backward(
    ensemble: Ensemble,
    objective: Any,
    x: Tensor,
    target: Tensor,
    state: State,
    *,
    backward: Callable[[Tensor], object] = Tensor.backward,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> tuple[Tensor, Tensor, Tensor]:
    """Forward and backward with the activations of one member at a time -> loss, weights (M, B), logits (M, B, C, …).

    Where it is known ahead who takes what (`Objective.ahead`: AMCL's memory-based phase), nothing couples the members
    but the exchange: each answers, sends its gradient back to the features it was given and forgets its activations;
    the sum of these gradients goes through exchange and stems once. Elsewhere all answer once without gradient first,
    and the loss of these answers says what gradient each has to send back when it answers again.

    >>> from torchmcl import methods
    >>> method = methods.build("ie", members=2, classes=3)
    >>> ensemble = Ensemble.build(method, "mlp", inputs=4, width=8)
    >>> objective, target = method.new_objective(), torch.zeros(5).long()
    >>> loss, weights, logits = lean_backward(ensemble, objective, torch.ones(5, 4), target, State())
    >>> weights.shape, all(p.grad is not None for p in ensemble.parameters())
    (torch.Size([2, 5]), True)
    """
    apart = isinstance(ensemble.exchange, Separate) and ensemble.gate is None
    with autocast():
        shared = [] if apart else ensemble.share(x)
    given = {id(h): h.detach().requires_grad_(h.requires_grad) for h in shared}
    features = [given[id(h)] for h in shared]

    def say(m: int) -> Tensor:
        with autocast():
            return ensemble.say(m, ensemble.stems[m](x) if apart else features[m], x)

    members = range(len(ensemble.bodies))
    weights = objective.ahead(len(members), target, state) if hasattr(objective, "ahead") else None
    if weights is not None:
        loss, each = torch.zeros((), device=x.device), []
        for m in members:
            said = say(m)
            part = objective.alone(said, weights[m], target, state)
            backward(part)
            loss += part.detach()
            each.append(said.detach())
        logits = torch.stack(each)
    else:
        again = _randomness(x.device)
        with torch.no_grad(), _no_statistics(ensemble):
            logits = ensemble.stacked([say(m) for m in members])
        with autocast():
            gate = None if ensemble.gate is None else ensemble.gate(features)
        outcome = objective(Opinions(logits.requires_grad_(), gate), target, state)
        backward(outcome.loss)
        loss, weights, answers = outcome.loss.detach(), outcome.weights, cast(Tensor, logits.grad)
        again()
        for m in members:
            say(m).backward(answers[m])
    sent = {id(h): h for h in shared if h.requires_grad}
    if sent:
        torch.autograd.backward(list(sent.values()), [given[key].grad for key in sent])
    return loss, weights, logits.detach()


def _randomness(device: torch.device) -> Callable[[], None]:
    """Remember the generators -> a function that sets them back, so that the same masks are drawn again."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def again() -> None:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)

    return again


@contextmanager
def _no_statistics(module: nn.Module) -> Iterator[None]:
    """Normalise by the batch, as in training, without counting the batch into the running statistics."""
    counting = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    for part in counting:
        part.track_running_stats = False
    try:
        yield
    finally:
        for part in counting:
            part.track_running_stats = True
