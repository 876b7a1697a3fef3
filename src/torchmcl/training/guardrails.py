from collections.abc import Sequence

from torch import Tensor

TELLING = ("cmcl", "vmcl", "amcl")  # methods that teach members what is not theirs


def look(
    taken: Tensor, *, k: int, oracle: float | None = None, top1: float | None = None, method: str = "amcl"
) -> list[str]:
    """What is going wrong, each with what to do about it; `taken` (classes, M) of an epoch, errors in percent.

    >>> import torch
    >>> look(torch.tensor([[9.0, 0.0], [7.0, 0.0]]), k=1)[0]
    'Member 2 took nothing in this epoch. Lower beta, raise k, or try balance=True.'
    """
    members = taken.shape[1]
    share = taken.sum(0) / taken.sum().clamp_min(1)
    said = []
    if k < members:
        idle = [m + 1 for m in range(members) if share[m] == 0]
        if idle:
            said.append(f"{names(idle)} took nothing in this epoch. {remedy(method)}")
        # With k members an example, nobody can take more than 1 / k of all assignments.
        greedy = [m + 1 for m in range(members) if share[m] > 0.95 / k]
        if greedy and members > k:
            said.append(f"{names(greedy)} took nearly everything in this epoch. {remedy(method)}")
    hint = "Train longer, or raise k."
    if method not in TELLING:
        hint = f"Use a method that tells them ({', '.join(TELLING)}), or raise k."
    if oracle is not None and top1 is not None and top1 - oracle > 30:
        said.append(
            f"Someone is right on all but {oracle:.1f} % but together they are wrong on {top1:.1f} %: members are sure "
            f"of what is not theirs. {hint}"
        )
    return said


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


def remedy(method: str) -> str:
    """What to do about members that take too little or too much."""
    if method == "amcl":
        return "Lower beta, raise k, or try balance=True."
    return "Raise k, or try amcl, with balance=True where it matters."
