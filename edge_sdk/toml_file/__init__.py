"""Typed TOML files: reading them, and saying what is wrong with them in the words of a user."""

from edge_sdk.toml_file.complaint import explain
from edge_sdk.toml_file.reading import read_toml

__all__ = ["explain", "read_toml"]
