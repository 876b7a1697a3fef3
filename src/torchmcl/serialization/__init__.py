"""Files of models and runs: configurations, weights, checkpoints, checksums and the Hugging Face hub.

Files written by earlier versions can also be read. See `training` for training loops, and `inference` for prediction.
"""
