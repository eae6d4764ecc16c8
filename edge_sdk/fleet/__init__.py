"""A fleet as its messages show it: which devices there are, how they do and what they see.

Owns no connection and no terminal. What comes over the network is not to be trusted: nothing of it reaches a terminal
but through `text`.
"""
