from torchmcl._utils.durations import Duration, check_duration
from torchmcl.assignment import Annealed
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.objective import Objective
from torchmcl.structures.task import Task


@any_task
def annealed(
    members: int,
    task: Task,
    *,
    k: int = 1,
    start: float = 0.5,
    decay: float | None = None,
    cooling: Duration = "80%",
) -> Composition:
    """Annealed multiple choice learning, Perera et al. 2024: a softmax assignment with a falling temperature.

    Args:
        start: The temperature in the first epoch.
        decay: The factor that multiplies the temperature after each epoch (0.95 in the paper); overrides `cooling`.
        cooling: The duration after which the assignment is hard [I].
    """
    check_duration(cooling, "cooling")
    return Composition(Objective(task, nothing, Annealed(k, start, decay, cooling)), k)
