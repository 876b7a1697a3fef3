from functools import partial

from torchmcl._utils.durations import Duration, check_duration
from torchmcl.assignment import TopK
from torchmcl.assignment.memory import Memory, Record
from torchmcl.methods.method import Composition, class_probabilities
from torchmcl.objectives.costs import Scaled, to_auxiliary
from torchmcl.objectives.objective import Objective, Phases
from torchmcl.structures.task import Task
from torchmcl.tasks.combiners import drop_auxiliary


@class_probabilities
def amcl(
    members: int,
    task: Task,
    *,
    k: int = 1,
    beta: float = 0.01,
    gamma: float = 0.5,
    warmup: Duration = "5%",
    memory: bool = True,
    balance: bool = False,
    groups: int | None = None,
) -> Composition:
    """Auxiliary class based multiple choice learning, Kim et al. 2022, eq. 4 to 6.

    Loss-based assignment, counted, for the `warmup`, memory-based after; `memory=False` never changes (the paper's
    ablation). The published warm-up is 5 epochs of 100 to 300. `balance` and `groups` (the classes that are counted,
    where they are not the targets') are ours.
    """
    check_duration(warmup, "warmup")
    counted = Memory(groups or task.outputs, members, k=k, balance=balance)
    leave = partial(to_auxiliary, classes=task.classes)
    by_loss = Objective(task, Scaled(leave, beta), Record(TopK(k), counted))
    by_memory = Objective(task, Scaled(leave, gamma), counted.recall)
    phases = Phases(by_loss, by_memory, after=warmup, names=("loss-based", "memory-based"), option="warmup")
    return Composition(
        phases if memory else by_loss,
        k,
        auxiliary=True,
        combine=drop_auxiliary,
        exchange="feature_fusion",
        teaches_leaving=True,
        published={"warmup": 5},
    )
