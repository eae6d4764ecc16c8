"""An arm64 board without the board: a Debian arm64 Python, the device install, and an emulated CPU to run them on."""
