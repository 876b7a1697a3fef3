from torchmcl.assignment import everyone
from torchmcl.methods.method import Composition, class_probabilities
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.joint_costs import BestTeacher
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@class_probabilities
def kdcl(members: int, task: Task, *, k: int = 1, temperature: float = 2.0) -> Composition:
    """Collaborative knowledge distillation (KDCL-Naive), Guo et al. 2020: members learn from the best member.

    Args:
        k: Ignored; every member takes every example.
        temperature: The temperature of the distillation.
    """
    return Composition(Objective(task, nothing, everyone, joint=[BestTeacher(temperature)]), k=members)
