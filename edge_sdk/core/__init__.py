"""What everything else is built on: errors, frames, protocols, clocks, threads, the machine, TOML files and logs."""
