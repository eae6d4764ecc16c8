"""Health: how the process and its machine are, and what the service manager is told of it.

Exports nothing: its parts are needed at different moments of a start, and the first of them before anything heavy.
"""
