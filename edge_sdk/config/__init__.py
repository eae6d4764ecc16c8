"""The configuration file of a device: its schema, how it is read, and the messages about errors in it.

This package starts nothing; `edge_sdk.service.settings` makes the settings of a service from the configuration.
"""
