"""The data structures that all parts of the library share.

They are the outputs of an ensemble, the state of training, the result of an objective, split networks, the rejection
rule, the base class of tasks and the type of costs. This package does not train networks, access files or depend on
methods.
"""

from torchmcl.structures.outcome import Outcome
from torchmcl.structures.output import EnsembleOutput, per_example, to_float32
from torchmcl.structures.rejection import Rejection
from torchmcl.structures.split import Split
from torchmcl.structures.state import IGNORE, State
from torchmcl.structures.task import Cost, EvaluationBatch, Joint, Task, memberwise

__all__ = [
    "IGNORE",
    "Cost",
    "EnsembleOutput",
    "EvaluationBatch",
    "Joint",
    "Outcome",
    "Rejection",
    "Split",
    "State",
    "Task",
    "memberwise",
    "per_example",
    "to_float32",
]
