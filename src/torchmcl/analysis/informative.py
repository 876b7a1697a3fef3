from collections.abc import Sequence

from torch import Tensor


def informative_examples(errors: Tensor, ensemble_errors: Tensor, groups: Sequence[int], count: int) -> list[int]:
    """Return the indices of examples on which the members' errors differ most and the ensemble's error is low.

    At most one example per group is chosen. The examples are ordered so that the member with the lowest
    error alternates. `errors` is (M, N), and `ensemble_errors` is (N,).

    >>> import torch
    >>> informative_examples(torch.tensor([[0.0, 1.0, 0.1], [1.0, 0.0, 0.1]]), torch.zeros(3), [0, 1, 2], 2)
    [0, 1]
    """
    score = errors.amax(0) - errors.amin(0) - 2 * ensemble_errors
    best_of_group: dict[int, int] = {}
    for i in score.argsort(descending=True, stable=True).tolist():
        best_of_group.setdefault(groups[i], i)
    best_member = errors.argmin(0).tolist()
    rank: dict[int, int] = {}  # the rank of each example among those with the same best member
    for i in best_of_group.values():
        rank[i] = sum(best_member[other] == best_member[i] for other in rank)
    return sorted(rank, key=rank.__getitem__)[:count]
