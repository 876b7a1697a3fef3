"""The ensemble: M members as one module, the exchange of features between them, and gates.

Networks of single members belong to `networks`.
"""

from torchmcl.ensemble.ensemble import Ensemble, Network, widened
from torchmcl.ensemble.gate import Gate

__all__ = ["Ensemble", "Gate", "Network", "widened"]
