"""The ensemble: M members as one module, the exchange of features between them, and the gate that weights them.

Networks of single members belong to `networks`, and the combination of the members' outputs to `tasks`.
"""

from torchmcl.ensemble.ensemble import Ensemble, Network, auxiliary_outputs
from torchmcl.ensemble.gate import Gate

__all__ = ["Ensemble", "Gate", "Network", "auxiliary_outputs"]
