"""Files of models and runs: configurations, weights, checkpoints, checksums and the Hugging Face hub.

Reading files of earlier versions belongs here too. Training loops belong in `training`, prediction in `inference`.
"""
