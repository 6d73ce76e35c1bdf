"""The root of every error of this package."""


class ThinkError(Exception):
    """The root of every error of this package."""
