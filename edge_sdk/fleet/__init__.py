"""A fleet as its messages show it: which devices there are, how they do and what they see."""
