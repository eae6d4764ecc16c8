"""Labelled and unlabelled images: the formats that are read, the checks of each file, and the split of a folder."""
