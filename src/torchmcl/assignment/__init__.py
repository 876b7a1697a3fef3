"""Assignments: rules that decide which members take which examples.

Rules compute the weights of a batch from the members' regrets. A memory counts assignments per
class and then fixes the owners of each class. Costs are in `objectives`, and losses are in `tasks`.
"""

from torchmcl.assignment.balance import Balanced, least_regret
from torchmcl.assignment.memory import Memory, Record
from torchmcl.assignment.rules import (
    Annealed,
    Assignment,
    Evolving,
    Relaxed,
    TopK,
    balanced,
    everyone,
    loss_independent,
    top_k,
)

__all__ = [
    "Annealed",
    "Assignment",
    "Balanced",
    "Evolving",
    "Memory",
    "Record",
    "Relaxed",
    "TopK",
    "balanced",
    "everyone",
    "least_regret",
    "loss_independent",
    "top_k",
]
