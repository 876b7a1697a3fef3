"""Small helpers that know nothing of ensembles, methods or training.

Each does one thing that any library might need, such as locking a folder. They import nothing of torchmcl but its
exceptions, and are not part of the public interface.
"""
