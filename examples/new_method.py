"""A new method in twenty lines: the weight of a member decreases smoothly as its regret increases."""

import torch

from torchmcl import Composition, Ensemble, Objective, methods
from torchmcl.objectives import costs
from torchmcl.testing import check_assignment, check_objective


# --8<-- [start:core]
class Soft:
    """The k best members have weight 1; the weights of the others decrease with their distance to the k-th best."""

    def __init__(self, k):
        self.k = k

    def __call__(self, regret, state):
        best = regret.detach().sort(0).values[self.k - 1]
        return torch.exp(-(regret.detach() - best).clamp_min(0))


@methods.class_probabilities
def soft_cmcl(members, task, *, k=1, beta=0.75):
    """CMCL with soft assignment weights."""
    objective = Objective(task, costs.Scaled(costs.to_uniform, beta), Soft(k))
    return Composition(objective, k, exchange="feature_sharing", teaches_leaving=True)


check_assignment(Soft)
check_objective(lambda members, classes, k: soft_cmcl(members, classes, k=k))
methods.register(soft_cmcl)
ensemble = Ensemble.build("soft_cmcl", "simple_cnn", members=3, classes=10, width=8)
# --8<-- [end:core]
print(methods.build("soft_cmcl", members=3, classes=10, k=2).new_objective())
print(ensemble(torch.randn(4, 3, 32, 32)).logits.shape)
