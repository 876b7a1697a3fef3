"""Specialist ensembles as scikit-learn estimators: `SpecialistClassifier` and `SpecialistRegressor`.

They train with the same loop as `torchmcl.fit`, without files, and pass all of scikit-learn's estimator checks.
"""

from torchmcl.sklearn.classifier import SpecialistClassifier
from torchmcl.sklearn.regressor import SpecialistRegressor

__all__ = ["SpecialistClassifier", "SpecialistRegressor"]
