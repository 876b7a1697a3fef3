"""Files of models and runs: configurations, weights, checkpoints, checksums and the Hugging Face hub.

It also reads files of earlier versions. See `training` for training loops, and `inference` for prediction.
"""
