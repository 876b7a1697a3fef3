from typing import Literal

from torchmcl.assignment import least_regret
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def smcl(
    members: int, task: Task, *, k: int = 1, balance: Literal["assignment"] | None = None, slack: float = 0.0
) -> Composition:
    """Stochastic multiple choice learning, Lee et al. 2016: the k members with the lowest loss take each example.

    Args:
        balance: "assignment" gives members equal shares; see `Balanced`. This option is not in the paper.
        slack: The relative deviation from an equal share that `balance` permits.
    """
    return Composition(Objective(task, nothing, least_regret(k, balance, slack)), k)
