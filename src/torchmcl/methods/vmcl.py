from typing import Literal

from torchmcl.assignment import least_regret
from torchmcl.methods.method import Composition, class_probabilities
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.joint_costs import Choice, Margin
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Joint, Task
from torchmcl.tasks.combiners import gated


@class_probabilities
def vmcl(
    members: int,
    task: Task,
    *,
    k: int = 1,
    alpha: float = 1.0,
    delta: float = 0.5,
    eta: float = 1.0,
    balance: Literal["assignment"] | None = None,
    slack: float = 0.0,
) -> Composition:
    """Versatile multiple choice learning, Tian et al. 2019: a choice network weights the members [I].

    Args:
        alpha: The factor applied to the margin loss.
        delta: The margin between the probabilities of the target and of other classes.
        eta: The factor applied to the choice network's loss.
        balance: "assignment" gives members equal shares; see `Balanced`. This option is not in the paper.
        slack: The relative deviation from an equal share that `balance` permits.
    """
    joint: list[Joint] = [Margin(alpha, margin=delta), Choice(eta)]
    objective = Objective(task, nothing, least_regret(k, balance, slack), joint=joint)
    return Composition(objective, k, combine=gated, exchange="weight_sharing", gate="conv", teaches_leaving=True)
