"""Typed TOML files: reading them, and saying what is wrong with them in the words of a user."""

from edge_sdk.toml_file.complaint import entry_label, explain, nearest
from edge_sdk.toml_file.expectation import shown
from edge_sdk.toml_file.problems import first_problems, problems, sound_part
from edge_sdk.toml_file.reading import read_document, read_toml

__all__ = [
    "entry_label",
    "explain",
    "first_problems",
    "nearest",
    "problems",
    "read_document",
    "read_toml",
    "shown",
    "sound_part",
]
