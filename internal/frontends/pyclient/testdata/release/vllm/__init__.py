"""A release that is none: its client has the methods of a real one, and is its own engine."""

__version__ = "9.9.9"
