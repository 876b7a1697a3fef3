"""Losses of labels, one number per member and example."""

import torch
from torch import Tensor

from torchmcl.structures.cost import memberwise
from torchmcl.structures.output import to_float32
from torchmcl.structures.state import State


@memberwise
def cross_entropy(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """l_m = -log p_m(y), the task's own loss: eq. 1 to 5 of Kim et al. 2022; of soft targets -sum_c y_c log p_m(c).

    >>> cross_entropy(torch.zeros(2, 1, 4), torch.tensor([3]), State())
    tensor([[1.3863],
            [1.3863]])
    """
    log_p = log_probabilities(logits, state)
    if target.is_floating_point():
        return state.by_example(-(target * log_p[:, :, : target.shape[1]]).sum(2))
    return of_label(log_p, target.expand(len(logits), *target.shape), state)


def log_probabilities(logits: Tensor, state: State) -> Tensor:
    """log p_m (M, B, C, …), computed once for all costs of a batch.

    >>> log_probabilities(torch.zeros(1, 1, 2), State())
    tensor([[[-0.6931, -0.6931]]])
    """
    known, graph, log_p = state.shared.get("log_p", (None, None, None))
    if known is not logits or graph != torch.is_grad_enabled():
        log_p = to_float32(logits).log_softmax(2)
        state.shared["log_p"] = logits, torch.is_grad_enabled(), log_p
    return log_p


def of_label(log_p: Tensor, label: Tensor, state: State) -> Tensor:
    """-log p_m(label), log_p (M, B, C, …), label (M, B, …) -> (M, B)."""
    return state.by_example(-log_p.gather(2, label.unsqueeze(2)).squeeze(2))
