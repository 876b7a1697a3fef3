from torchmcl.assignment import Evolving
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def evolving(members: int, task: Task, *, k: int = 1) -> Composition:
    """Evolving winner-takes-all, Makansi et al. 2019: the number of winners falls from M to k; see `Evolving`."""
    return Composition(Objective(task, nothing, Evolving(k)), k)
