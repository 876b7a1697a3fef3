from functools import partial

from torchmcl._utils.durations import Duration, check_duration
from torchmcl.assignment import Memory, Record, TopK
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

    Members leave an example by predicting an auxiliary class. The assignment is loss-based and counted in a memory
    during the warm-up, and memory-based afterwards.

    Args:
        beta: The factor applied to the leave cost during the warm-up.
        gamma: The factor applied to the leave cost after the warm-up.
        warmup: The duration of the loss-based phase; the paper uses 5 epochs in schedules of 100 to 300 epochs.
        memory: Whether to use the memory-based phase; False gives the paper's ablation without memory.
        balance: Whether all members own the same number of classes, to within one. This option is not in the paper.
        groups: The number of groups if the memory counts groups instead of classes. This option is not in the paper.
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
