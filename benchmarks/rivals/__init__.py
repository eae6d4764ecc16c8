"""Programs as many people write them, or as other projects have them, to measure beside."""
