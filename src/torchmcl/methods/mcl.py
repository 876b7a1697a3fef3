from torchmcl.assignment import TopK
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.dataset_pass import FixedAssignment
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def mcl(members: int, task: Task, *, k: int = 1, round: int = 5) -> Composition:
    """Multiple choice learning by block coordinate descent, Guzman-Rivera et al. 2012.

    Args:
        round: The number of epochs between two assignments of the training set [I].
    """
    return Composition(Objective(task, nothing, FixedAssignment(task, TopK(k), every=round)), k)
