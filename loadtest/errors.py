"""Every error that the load test raises.

LoadTestError
├── InvalidInput     an argument, a file or a trace cannot be used (also a ValueError)
├── ServiceFailed    the service did not start, or did not take the documents
└── ProbeFailed      a method does not answer even a single request without load
"""


class LoadTestError(Exception):
    """Base of every error of this package."""


class InvalidInput(LoadTestError, ValueError):
    """An argument, a file or a trace cannot be used; the message says what to change."""


class ServiceFailed(LoadTestError):
    """The service did not start, or did not take the documents."""


class ProbeFailed(LoadTestError):
    """A method does not answer even a single request without load."""
