from dataclasses import replace
from functools import partial
from typing import cast

from torchmcl._utils.durations import Duration, check_duration
from torchmcl.assignment import Memory, Record, TopK
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

    With a `Regression` task, the auxiliary output is a binary "not mine" next to the prediction, and the memory needs
    `groups` of examples [I].
    """
    check_duration(warmup, "warmup")
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
    counted = Memory(groups or task.outputs, members, k=k, balance=balance)
    countable = groups is not None or task.classes is not None
    by_loss = Objective(task, Scaled(leave, beta), Record(TopK(k), counted) if countable else TopK(k))
    by_memory = Objective(task, Scaled(leave, gamma), counted.recall)
    phases = Phases(by_loss, by_memory, after=warmup, names=("loss-based", "memory-based"), option="warmup")
    return Composition(
        phases if memory else by_loss,
        k,
        auxiliary=True,
        combine=combine,
        exchange="feature_fusion",
        teaches_leaving=True,
        published={"warmup": 5},
    )
