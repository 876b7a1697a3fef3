from torchmcl.assignment import Relaxed
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def relaxed(members: int, task: Task, *, k: int = 1, eps: float = 0.05) -> Composition:
    """Relaxed winner-takes-all, Rupprecht et al. 2017: each winner gives weight `eps` to the others; see `Relaxed`.

    Args:
        eps: The weight that each winner gives up.
    """
    return Composition(Objective(task, nothing, Relaxed(k, eps)), k)
