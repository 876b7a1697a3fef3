from typing import Literal

from torchmcl.assignment import least_regret
from torchmcl.methods.method import Composition, class_probabilities
from torchmcl.objectives.costs import Scaled, to_random_label, to_uniform
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@class_probabilities
def cmcl(
    members: int,
    task: Task,
    *,
    k: int | None = None,
    beta: float = 0.75,
    stochastic: bool = False,
    balance: Literal["assignment"] | None = None,
    slack: float = 0.0,
) -> Composition:
    """Confident multiple choice learning, Lee et al. 2017: members leave examples by predicting a uniform distribution.

    Args:
        k: The number of members that take each example; by default 4, or all members if there are fewer.
        beta: The factor applied to the leave cost.
        stochastic: Whether to use stochastic labelling (version 1 in the paper) instead of the KL divergence.
        balance: "assignment" gives members equal shares; see `Balanced`. This option is not in the paper.
        slack: The relative deviation from an equal share that `balance` permits.
    """
    exact, k = Scaled(to_uniform, beta), min(4, members) if k is None else k
    leave = Scaled(to_random_label, beta) if stochastic else exact
    objective = Objective(task, leave, least_regret(k, balance, slack), rank=exact)
    return Composition(objective, k, exchange="feature_sharing", teaches_leaving=True)
