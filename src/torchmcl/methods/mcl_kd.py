from typing import Literal

from torchmcl._utils.durations import Duration, check_duration
from torchmcl.assignment import everyone, least_regret
from torchmcl.methods.method import Composition, class_probabilities
from torchmcl.objectives.costs import Scaled, nothing
from torchmcl.objectives.dataset_pass import ToTeacher
from torchmcl.objectives.objective import Objective, Phases
from torchmcl.structures.task import Task


@class_probabilities
def mcl_kd(
    members: int,
    task: Task,
    *,
    k: int = 1,
    beta: float = 1.0,
    temperature: float = 2.0,
    pretrain: Duration = "30%",
    class_mean: bool = False,
    balance: Literal["assignment"] | None = None,
    slack: float = 0.0,
) -> Composition:
    """MCL with knowledge distillation, Mun et al. 2018: members leave examples by keeping their earlier predictions.

    Args:
        beta: The factor applied to the leave cost.
        temperature: The temperature of the distillation.
        pretrain: The duration of independent training, after which members become their own teachers [I]. In the
            official code, members start from trained weights, which is `pretrain=0` with `fit(initial_weights=…)`.
        class_mean: Whether to divide the leave cost by the number of classes, as the official code does.
        balance: "assignment" gives members equal shares; see `Balanced`. This option is not in the paper.
        slack: The relative deviation from an equal share that `balance` permits.
    """
    check_duration(pretrain, "pretrain", least=0)
    weight = beta / (task.classes or 1) if class_mean else beta
    leave = Scaled(ToTeacher(temperature=temperature, after=pretrain), weight)
    first = Objective(task, nothing, everyone)
    then = Objective(task, leave, least_regret(k, balance, slack))
    names = ("independent", "specialising")
    return Composition(Phases(first, then, after=pretrain, names=names, option="pretrain"), k)
