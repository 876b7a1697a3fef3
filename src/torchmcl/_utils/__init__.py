"""Small helpers that any library might need, such as file locks and registries.

They know nothing about ensembles, methods or training, and import only the exceptions from torchmcl. They are not part
of the public interface.
"""
