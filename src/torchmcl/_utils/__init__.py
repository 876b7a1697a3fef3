"""Private helpers that any library might need, such as file locks and registries.

They are independent of ensembles, methods and training, and import only the exceptions from torchmcl.
"""
