from dataclasses import replace
from functools import partial
from typing import Literal, cast

from torchmcl._utils.durations import STABLE, Duration, check_duration
from torchmcl.assignment import Memory, Record, least_regret
from torchmcl.errors import UsageError
from torchmcl.methods.method import Composition, any_task
from torchmcl.objectives.costs import Cost, Scaled, to_auxiliary, to_declined
from torchmcl.objectives.objective import Objective, Phases
from torchmcl.structures.task import Task
from torchmcl.tasks.combiners import Combiner, drop_auxiliary
from torchmcl.tasks.regression import Claimed, Regression


@partial(any_task, needs_classes=True, accepts=(Regression,))
def amcl(
    members: int,
    task: Task,
    *,
    k: int = 1,
    beta: float = 0.01,
    gamma: float = 0.5,
    warmup: Duration = "5%",
    memory: bool | Literal["shuffled"] = True,
    balance: bool | Literal["assignment", "memory", "both"] = False,
    slack: float = 0.0,
    groups: int | None = None,
) -> Composition:
    """Auxiliary class based MCL, Kim et al. 2022, eq. 4 to 6: members leave examples by predicting an auxiliary class.

    The assignment is loss-based and counted in a memory
    during the warm-up, and memory-based afterwards.

    Args:
        beta: The factor applied to the leave cost during the warm-up.
        gamma: The factor applied to the leave cost after the warm-up.
        warmup: The duration of the loss-based phase; the paper uses 5 epochs in schedules of 100 to 300 epochs. With
            "stable", the phase ends as soon as the owners of the classes have settled; see `Memory.settled`. "stable"
            is not in the paper.
        memory: Whether to use the memory-based phase; False gives the paper's ablation without memory. With "shuffled",
            each class gets the owners of another, random class, as a control. "shuffled" is not in the paper.
        balance: "assignment" gives members equal shares of the examples in the loss-based phase; see `Balanced`.
            "memory" or True gives them the same number of classes in the memory-based phase, to within one. "both"
            does both. This option is not in the paper.
        slack: The relative deviation from an equal share that "assignment" and "both" permit.
        groups: The number of groups if the memory counts groups instead of classes. This option is not in the paper.

    With a `Regression` task, the auxiliary output is a binary "not mine" next to the prediction, and the memory needs
    `groups` of examples [I].
    """
    check_duration(warmup, "warmup", stable=True)
    leave: Cost = partial(to_auxiliary, classes=task.classes)
    combine: Combiner | None = drop_auxiliary
    if isinstance(task, Regression):
        if memory and groups is None:
            raise UsageError(
                "Regression targets are not classes that a memory can count. Pass groups=… or memory=False."
            )
        if task.score is not None:
            raise UsageError("amcl scores hypotheses by its auxiliary output. Use Regression(score=None).")
        task, leave, combine = replace(task, loss=Claimed(cast(Cost, task.loss))), to_declined, None
    even, stable = balance in (True, "memory", "both"), warmup == STABLE
    shuffle = memory == "shuffled"
    counted = Memory(groups or task.outputs, members, k=k, balance=even, stable=stable, shuffle=shuffle)
    chosen, countable = least_regret(k, balance, slack), groups is not None or task.classes is not None
    by_loss = Objective(task, Scaled(leave, beta), Record(chosen, counted) if countable else chosen)
    by_memory = Objective(task, Scaled(leave, gamma), counted.recall)
    names = ("loss-based", "memory-based")
    settled = counted.settled if stable else None
    phases = Phases(by_loss, by_memory, after=warmup, names=names, option="warmup", settled=settled)
    return Composition(
        phases if memory else by_loss,
        k,
        auxiliary=True,
        combine=combine,
        exchange="feature_fusion",
        teaches_leaving=True,
        published={"warmup": 5},
    )
