from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torchmcl import methods
from torchmcl.errors import UsageError
from torchmcl.methods import Method

MAX_LABELS = 20  # more different values are not taken for labels


def check_shares(taken: Tensor, method: Method) -> list[str]:
    """Return warnings about members that take too few or too many examples.

    Args:
        taken: The number of examples of each class that each member took in an epoch, (classes, M).
        method: The method used for training.

    Returns:
        One line per problem, with advice.

    >>> import torch
    >>> check_shares(torch.tensor([[9.0, 0.0], [7.0, 0.0]]), methods.build("amcl", members=2, classes=2))[0]
    'Member 2 took nothing in this epoch. Lower beta, raise k, or try balance="assignment".'
    """
    members, k = method.members, method.k
    share = taken.sum(0) / taken.sum().clamp_min(1)
    warnings = []
    if k < members:
        idle = [m + 1 for m in range(members) if share[m] == 0]
        # If k members take each example, no member can have more than 1 / k of all assignments.
        greedy = [m + 1 for m in range(members) if share[m] > 0.95 / k]
        advice = _revive(method.name) if method.task.classes is None else _balance_advice(method)
        for found, problem in ((idle, "nothing"), (greedy, "nearly everything")):
            if found:
                who = f"Member{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
                warnings.append(f"{who} took {problem} in this epoch. {advice}")
    return warnings


def check_metrics(values: Mapping[str, Any], method: Method) -> list[str]:
    """Return warnings about overconfident members and about hypotheses that are never the best.

    Args:
        values: Metrics of the method's task on a data set, see `Task.evaluate`.
        method: The method used for training.

    >>> check_metrics({"winners": [60.0, 0.0, 40.0], "examples": 500}, methods.build("smcl", 3))[0]
    'Hypothesis 2 is never the closest to a target. Use relaxed, evolving or annealed, which train every hypothesis at
        first, or fewer members.'
    """
    oracle, top1 = values.get("oracle_error"), values.get("top1_error")
    warnings = []
    if oracle is not None and top1 is not None and top1 - oracle > 30:
        advice = "Train longer, or raise k."
        if not method.composition.teaches_leaving:
            teaching = [name for name in methods.names() if methods.build(name).composition.teaches_leaving]
            advice = f"Use a method that penalises overconfidence ({', '.join(teaching)}), or raise k."
        warnings.append(
            f"The oracle error is {oracle:.1f} %, but the top-1 error is {top1:.1f} %: members are overconfident on "
            f"examples that they do not take. {advice}"
        )
    # Among fewer examples, even an average hypothesis can miss all of them by chance: (1 - 1/M)^5M is below 1 %.
    if method.k < method.members and values.get("examples", 0) >= 5 * method.members:
        warnings += check_winners(values.get("winners", ()), method.name)
    return warnings


def _balance_advice(method: Method) -> str:
    options = method.options
    if "balance" not in options:
        return 'Raise k, or try amcl with balance="assignment".'
    balance, has_memory = options["balance"], bool(options.get("memory"))
    if balance == "both" or (balance == "assignment" and not has_memory):
        # Shares are equal already, as far as the slack and the number of classes permit.
        return "Raise k, lower slack, or use fewer members." if options["slack"] else "Raise k, or use fewer members."
    first = "Lower beta, raise" if "beta" in options else "Raise"
    # Each kind of balance leaves a phase in which a member can take nothing.
    return f'{first} k, or try balance="{"both" if balance and has_memory else "assignment"}".'


def check_winners(share: Sequence[float], method: str = "smcl") -> list[str]:
    """Return a warning about hypotheses that are never the closest to a target, given the share of each hypothesis.

    The warning recommends other methods than `method`, which was used for training.

    >>> check_winners([0.5, 0.0, 0.5, 0.0])[0]
    'Hypotheses 2, 4 are never the closest to a target. Use relaxed, evolving or annealed, which train every hypothesis
        at first, or fewer members.'
    """
    idle = [str(m) for m, part in enumerate(share, start=1) if part == 0]
    who = f"Hypothes{'e' if len(idle) > 1 else 'i'}s {', '.join(idle)} {'are' if len(idle) > 1 else 'is'}"
    return [f"{who} never the closest to a target. {_revive(method)}"] if idle else []


def _revive(method: str) -> str:
    others = [name for name in ("relaxed", "evolving", "annealed") if name != method]
    names = f"{', '.join(others[:-1])} or {others[-1]}"
    return f"Use {names}, which train every hypothesis at first, or fewer members."


def check_examples(method: Method, examples: int) -> None:
    """Raise UsageError if a training set has fewer examples than the method has members, so that some never win.

    >>> check_examples(methods.build("smcl", members=5), 3)
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected at least 5 training examples, one per member, got 3. Use fewer members.
    """
    if examples < method.members:
        raise UsageError(
            f"Expected at least {method.members} training examples, one per member, got {examples}. Use fewer members."
        )


def check_targets(target: Tensor) -> list[str]:
    """Return a warning if numbers to predict, (N, D) or (N, T, D), look like the labels of classes.

    >>> import torch
    >>> check_targets(torch.tensor([[0.0], [1.0]] * 9))
    ['The targets are floats with only 2 different whole numbers. If they are classes, convert them to integers.']
    """
    if not target.is_floating_point():
        return []
    values = target[target.isfinite()].unique()
    if len(values) > MAX_LABELS or len(target) < 5 * len(values) or not bool((values == values.round()).all()):
        return []
    return [
        f"The targets are floats with only {len(values)} different whole numbers. If they are classes, convert them to "
        "integers."
    ]


def check_schedule(method: Method, epochs: int) -> list[str]:
    """Return a warning if training ends before the objective reaches its final phase, for example within the warm-up.

    >>> check_schedule(methods.build("amcl"), 1)
    ['Training ends before amcl reaches its final phase, which starts after 1 of 1 epochs. Train longer.']
    """
    after = method.schedule_end(epochs)
    if after < epochs:
        return []
    return [
        f"Training ends before {method.name} reaches its final phase, which starts after {after} of {epochs} epochs. "
        "Train longer."
    ]


def check_counts(counts: Tensor, classes: Sequence[str]) -> list[str]:
    """Return a warning about classes that no member had seen when the memory was fixed; `counts` is (classes, M).

    >>> import torch
    >>> check_counts(torch.tensor([[3, 0], [0, 0]]), ["cat", "dog"])
    ['No member had seen dog when the memory was fixed. The first member takes it. Increase warmup, or drop the class.']
    """
    missing = [name for name, row in zip(classes, counts.tolist(), strict=True) if not any(row)]
    if not missing:
        return []
    listed = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
    return [
        f"No member had seen {listed} when the memory was fixed. The first member takes "
        f"{'it' if len(missing) == 1 else 'them'}. Increase warmup, or drop the class."
    ]
