from collections.abc import Sequence

from torch import Tensor

from torchmcl import methods
from torchmcl.methods import Method


def check(taken: Tensor, method: Method, *, oracle: float | None = None, top1: float | None = None) -> list[str]:
    """What is going wrong, each with what to do about it; `taken` (classes, M) of an epoch, errors in percent.

    >>> import torch
    >>> check(torch.tensor([[9.0, 0.0], [7.0, 0.0]]), methods.build("amcl", members=2, classes=2))[0]
    'Member 2 took nothing in this epoch. Lower beta, raise k, or try balance=True.'
    """
    members, k = method.members, method.k
    share = taken.sum(0) / taken.sum().clamp_min(1)
    said = []
    if k < members:
        idle = [m + 1 for m in range(members) if share[m] == 0]
        if idle:
            said.append(f"{names(idle)} took nothing in this epoch. {remedy(method)}")
        # With k members an example, nobody can take more than 1 / k of all assignments.
        greedy = [m + 1 for m in range(members) if share[m] > 0.95 / k]
        if greedy:
            said.append(f"{names(greedy)} took nearly everything in this epoch. {remedy(method)}")
    if oracle is not None and top1 is not None and top1 - oracle > 30:
        hint = "Train longer, or raise k."
        if not method.teaches_leaving:
            teaching = [name for name in methods.names() if methods.build(name).teaches_leaving]
            hint = f"Use a method that tells them ({', '.join(teaching)}), or raise k."
        said.append(
            f"Someone is right on all but {oracle:.1f} % but together they are wrong on {top1:.1f} %: members are sure "
            f"of what is not theirs. {hint}"
        )
    return said


def unsettled(method: Method, epochs: int) -> list[str]:
    """A schedule that ends before the method has its final form.

    >>> unsettled(methods.build("amcl"), 1)
    ['Training ends before amcl has its final form, after 1 of 1 epochs. Train longer.']
    """
    after = method.schedule_end(epochs)
    if after < epochs:
        return []
    return [f"Training ends before {method.name} has its final form, after {after} of {epochs} epochs. Train longer."]


def uncounted(counts: Tensor, classes: Sequence[str]) -> list[str]:
    """Classes (of counts (classes, M)) that nobody had seen when the memory was fixed.

    >>> import torch
    >>> uncounted(torch.tensor([[3, 0], [0, 0]]), ["cat", "dog"])
    ['Nobody had seen dog when the memory was fixed, so the first member has it. Lengthen warmup, or drop the class.']
    """
    missing = [name for name, row in zip(classes, counts.tolist(), strict=True) if not any(row)]
    if not missing:
        return []
    listed = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
    them = "it" if len(missing) == 1 else "them"
    return [
        f"Nobody had seen {listed} when the memory was fixed, so the first member has {them}. "
        "Lengthen warmup, or drop the class."
    ]


def names(members: Sequence[int]) -> str:
    """'Member 2', 'Members 2, 3'."""
    return f"Member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"


def remedy(method: Method) -> str:
    """What to do about members that take too little or too much."""
    if "balance" in method.options:
        return "Lower beta, raise k, or try balance=True."
    return "Raise k, or try amcl, with balance=True where it matters."
