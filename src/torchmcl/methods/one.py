from torchmcl._utils.durations import Duration, check_duration
from torchmcl.assignment import everyone
from torchmcl.errors import UsageError
from torchmcl.methods.method import Composition, class_probabilities
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.joint_costs import GatedTeacher
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task
from torchmcl.tasks.combiners import gated_logits


@class_probabilities
def one(
    members: int,
    task: Task,
    *,
    k: int = 1,
    temperature: float = 3.0,
    rampup: Duration = "26.6667%",
    first_epoch: int = 1,
) -> Composition:
    """On-the-fly native ensemble, Lan et al. 2018: branches of one network learn from the gated sum of their logits.

    Args:
        k: Ignored; every member takes every example.
        temperature: The temperature of the distillation.
        rampup: The duration over which the weight of the distillation grows; 80 of 300 epochs in the paper.
        first_epoch: The number of the first epoch in this weight; 0 in the official code.
    """
    check_duration(rampup, "rampup")
    if first_epoch not in (0, 1):
        raise UsageError(f"Expected first_epoch to be 0 or 1, got {first_epoch}.")
    return Composition(
        Objective(task, nothing, everyone, joint=[GatedTeacher(temperature, rampup, first_epoch)]),
        k=members,
        combine=gated_logits,
        exchange="weight_sharing",
        cut="last_stage",
        gate="pool",
    )
