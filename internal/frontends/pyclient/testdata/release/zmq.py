"""Stands for a package of an environment."""
