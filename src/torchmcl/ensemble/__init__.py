"""The ensemble: M members as one module, the exchange of features between them, and the gate that weights them.

Networks of single members are in `networks`, and functions that combine the members' outputs are in `tasks`.
"""

from torchmcl.ensemble.ensemble import Ensemble, Network, auxiliary_outputs
from torchmcl.ensemble.gate import Gate

__all__ = ["Ensemble", "Gate", "Network", "auxiliary_outputs"]
