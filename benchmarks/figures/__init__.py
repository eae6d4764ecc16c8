"""What `make bench` measures for docs/benchmarks.md."""
