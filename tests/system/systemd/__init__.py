"""A real systemd as the first process of a container, and the unit of the examples in it."""
