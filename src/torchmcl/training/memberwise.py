from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchmcl.ensemble import Ensemble
from torchmcl.ensemble.ensemble import restore_examples, select_examples
from torchmcl.ensemble.exchange import NoExchange
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.state import State
from torchmcl.training.sample_others import Sample


def memberwise_backward(
    ensemble: Ensemble,
    objective: Any,
    x: Tensor,
    target: Tensor,
    state: State,
    *,
    backward: Callable[[Tensor], object] = Tensor.backward,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    sample: Sample | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the forward and backward pass while storing the activations of only one member at a time.

    If the weights do not depend on the losses (`Objective.precomputed_weights`, as in AMCL's memory-based phase), each
    member computes its loss, propagates the gradient to its input features and frees its activations. The sum of these
    gradients passes through the exchange and the stems once. Otherwise, a first pass computes the loss of all members.
    A second pass propagates the gradient of the loss from the outputs through one member at a time.

    With a `sample`, which requires precomputed weights, a member sees only its part of the batch. Its logits for other
    examples are 0.

    Returns:
        The loss, the weights (M, B) and the logits (M, B, C, …).

    >>> from torchmcl import methods
    >>> method = methods.build("ie", members=2, classes=3)
    >>> ensemble = Ensemble.build(method, "mlp", inputs=4, width=8)
    >>> objective, target = method.new_objective(), torch.zeros(5).long()
    >>> loss, weights, logits = memberwise_backward(ensemble, objective, torch.ones(5, 4), target, State())
    >>> weights.shape, all(p.grad is not None for p in ensemble.parameters())
    (torch.Size([2, 5]), True)
    """
    separate = isinstance(ensemble.exchange, NoExchange) and ensemble.gate is None
    x = ensemble.whitening(x)
    with autocast():
        shared = [] if separate else ensemble.exchange_features(x)
    leaves = {id(h): h.detach().requires_grad_(h.requires_grad) for h in shared}
    features = [leaves[id(h)] for h in shared]

    def forward(m: int) -> Tensor:
        part = None if sample is None else sample.parts[m]
        with autocast():
            h = select_examples(x if separate else features[m], part)
            output = ensemble.forward_member(m, ensemble.stems[m](h) if separate else h, x)
        return restore_examples(output, part, len(x))

    members = range(len(ensemble.bodies))
    precompute = getattr(objective, "precomputed_weights", None)
    weights = None if precompute is None else precompute(len(members), target, state)
    if weights is not None:
        loss, collected = torch.zeros((), device=x.device), []
        for m in members:
            output = forward(m)
            corrected, own = (output, state) if sample is None else sample.of_member(m, output, state)
            part = objective.member_loss(corrected, weights[m], target, own)
            backward(part)
            loss += part.detach()
            collected.append(output.detach())
        logits = torch.stack(collected)
    else:
        restore = _save_generators(x.device)
        with torch.no_grad(), _no_statistics(ensemble):
            logits = ensemble.stack_logits([forward(m) for m in members])
        with autocast():
            gate = None if ensemble.gate is None else ensemble.gate(features)
        outcome = objective(EnsembleOutput(logits.requires_grad_(), gate), target, state)
        backward(outcome.loss)
        loss, weights, gradient = outcome.loss.detach(), outcome.weights, cast(Tensor, logits.grad)
        restore()
        for m in members:
            forward(m).backward(gradient[m])
    trained = {id(h): h for h in shared if h.requires_grad}
    if trained:
        torch.autograd.backward(list(trained.values()), [leaves[key].grad for key in trained])
    return loss, weights, logits.detach()


def _save_generators(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the random generators, so that both passes draw the same numbers."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)

    return restore


@contextmanager
def _no_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch normalisation use batch statistics, as in training, without updating the running statistics."""
    tracking = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    for part in tracking:
        part.track_running_stats = False
    try:
        yield
    finally:
        for part in tracking:
            part.track_running_stats = True
