from functools import partial
from typing import Literal

from torchmcl._utils.durations import STABLE, Duration, check_duration
from torchmcl.assignment import Memory, Record, least_regret
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
    balance: bool | Literal["assignment", "memory", "both"] = False,
    slack: float = 0.0,
    groups: int | None = None,
) -> Composition:
    """Auxiliary class based multiple choice learning, Kim et al. 2022, eq. 4 to 6.

    Members leave an example by predicting an auxiliary class. The assignment is loss-based and counted in a memory
    during the warm-up, and memory-based afterwards.

    Args:
        beta: The factor applied to the leave cost during the warm-up.
        gamma: The factor applied to the leave cost after the warm-up.
        warmup: The duration of the loss-based phase; the paper uses 5 epochs in schedules of 100 to 300 epochs. With
            "stable", the phase ends as soon as the owners of the classes have settled; see `Memory.settled`. "stable"
            is not in the paper.
        memory: Whether to use the memory-based phase; False gives the paper's ablation without memory.
        balance: "assignment" gives members equal shares of the examples in the loss-based phase; see `Balanced`.
            "memory" or True gives them the same number of classes in the memory-based phase, to within one. "both"
            does both. This option is not in the paper.
        slack: The relative deviation from an equal share that "assignment" and "both" permit.
        groups: The number of groups if the memory counts groups instead of classes. This option is not in the paper.
    """
    check_duration(warmup, "warmup", stable=True)
    even, stable = balance in (True, "memory", "both"), warmup == STABLE
    counted = Memory(groups or task.outputs, members, k=k, balance=even, stable=stable)
    leave = partial(to_auxiliary, classes=task.classes)
    by_loss = Objective(task, Scaled(leave, beta), Record(least_regret(k, balance, slack), counted))
    by_memory = Objective(task, Scaled(leave, gamma), counted.recall)
    names = ("loss-based", "memory-based")
    settled = counted.settled if stable else None
    phases = Phases(by_loss, by_memory, after=warmup, names=names, option="warmup", settled=settled)
    return Composition(
        phases if memory else by_loss,
        k,
        auxiliary=True,
        combine=drop_auxiliary,
        exchange="feature_fusion",
        teaches_leaving=True,
        published={"warmup": 5},
    )
