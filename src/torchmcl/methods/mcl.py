from typing import Literal

from torchmcl.assignment import least_regret
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.dataset_pass import FixedAssignment
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def mcl(
    members: int,
    task: Task,
    *,
    k: int = 1,
    round: int = 5,
    balance: Literal["assignment"] | None = None,
    slack: float = 0.0,
) -> Composition:
    """Multiple choice learning by block coordinate descent, Guzman-Rivera et al. 2012.

    Args:
        round: The number of epochs between two assignments of the training set [I].
        balance: "assignment" gives members equal shares of the training set; see `Balanced`. This option is not in the
            paper.
        slack: The relative deviation from an equal share that `balance` permits.
    """
    return Composition(Objective(task, nothing, FixedAssignment(task, least_regret(k, balance, slack), every=round)), k)
