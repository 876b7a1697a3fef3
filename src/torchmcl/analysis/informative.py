from collections.abc import Sequence

from torch import Tensor


def informative_examples(errors: Tensor, together: Tensor, groups: Sequence[int], count: int) -> list[int]:
    """Examples that members differ on most and the ensemble gets right: errors (M, N), together (N,) -> places.

    One a group, and the members that are best at them take turns.

    >>> import torch
    >>> informative_examples(torch.tensor([[0.0, 1.0, 0.1], [1.0, 0.0, 0.1]]), torch.zeros(3), [0, 1, 2], 2)
    [0, 1]
    """
    score = errors.amax(0) - errors.amin(0) - 2 * together
    of_group: dict[int, int] = {}
    for at in score.argsort(descending=True, stable=True).tolist():
        of_group.setdefault(groups[at], at)
    best = errors.argmin(0).tolist()
    turns: dict[int, int] = {}  # of each example among those that the same member is best at
    for at in of_group.values():
        turns[at] = sum(best[other] == best[at] for other in turns)
    return sorted(turns, key=turns.__getitem__)[:count]
