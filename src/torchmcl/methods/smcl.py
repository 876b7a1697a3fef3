from torchmcl.assignment import TopK
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def smcl(members: int, task: Task, *, k: int = 1) -> Composition:
    """Stochastic multiple choice learning, Lee et al. 2016: the k members with the lowest loss take each example."""
    return Composition(Objective(task, nothing, TopK(k)), k)
