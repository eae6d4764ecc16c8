"""What one inference costs on an ARM board that is not here: instructions counted under emulation, and an estimate."""
