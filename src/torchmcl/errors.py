class UsageError(ValueError):
    """Something was asked for that cannot be done: one line of what was expected, what came, what to do next.

    Every error that torchmcl raises on purpose is one of these, so that a program can tell them from defects.

    >>> raise UsageError("Expected 1 <= k <= 5 members, got k=7.")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected 1 <= k <= 5 members, got k=7.
    """
