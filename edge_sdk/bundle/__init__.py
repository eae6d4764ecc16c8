"""Bundles: open and verify one, read its manifest, its model description, its target and its golden inputs."""
