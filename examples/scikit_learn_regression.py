"""Several answers from a scikit-learn regressor: hypotheses, their probabilities and samples, in a pipeline."""

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from torchmcl import SpecialistRegressor

generator = np.random.default_rng(0)
X = generator.uniform(size=(400, 1))
sides = np.where(generator.random((400, 1)) < 0.7, 1, -1)  # 70 % of the targets are on the upper branch
y = (20 + 5 * X * sides + 0.2 * generator.normal(size=(400, 1))).ravel()
X, X_test, y, y_test = train_test_split(X, y, random_state=0)
# --8<-- [start:core]
specialists = SpecialistRegressor("annealed", members=3, epochs=40, random_state=0)
pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), specialists).fit(X, y)
features = pipeline[:-1].transform(X_test)
hypotheses = specialists.predict_hypotheses(features)[:, :, 0]  # (members, n)
scores = specialists.predict_scores(features)  # (members, n), sums to 1 over the members
samples = specialists.sample(features, 200, random_state=0)[:, :, 0]  # (200, n)
# --8<-- [end:core]
mean_error = np.sqrt(np.mean((pipeline.predict(X_test) - y_test) ** 2))
best_error = np.sqrt(np.mean(np.min((hypotheses - y_test) ** 2, axis=0)))
above = np.mean(samples[:, X_test[:, 0] > 0.5] > 20)
print(f"RMSE of the mean {mean_error:.2f}, of the best hypothesis {best_error:.2f}")
last = np.argmax(X_test[:, 0])
for hypothesis, score in zip(hypotheses[:, last], scores[:, last], strict=True):
    print(f"y({X_test[last, 0]:.2f}) = {hypothesis:.2f} with probability {score:.2f}")
print(f"share of the samples on the upper branch: {above:.2f}")
