"""Build a bundle: the pipeline from a model to a signed folder, its variants, and what it reports."""
