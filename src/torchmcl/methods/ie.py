from torchmcl.assignment import everyone
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def ie(members: int, task: Task, *, k: int = 1) -> Composition:
    """Independent ensemble, Kim et al. 2022, eq. 1: every member takes every example, and `k` is ignored."""
    return Composition(Objective(task, nothing, everyone), k=members)
