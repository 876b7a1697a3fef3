from torchmcl.assignment import everyone
from torchmcl.methods.method import Composition, class_probabilities
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.joint_costs import Similarity
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@class_probabilities
def emadnn(members: int, task: Task, *, k: int = 1, weight: float = 0.1, bounded: bool = True) -> Composition:
    """Efficient model averaging, Opitz et al. 2016 [I]: an ensemble with a penalty on similar predictions.

    Args:
        k: Ignored; every member takes every example.
        weight: The factor applied to the penalty.
        bounded: Whether to use the penalty that is bounded below; see `Similarity`.
    """
    return Composition(Objective(task, nothing, everyone, joint=[Similarity(weight, bounded)]), k=members)
