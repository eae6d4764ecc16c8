"""A device's configuration file: what may stand in it, reading it, and what is wrong with it in words.

Starts nothing; `edge_sdk.service.settings` makes of it what a daemon runs.
"""
