"""Events: rules that turn results into events, the pictures published with them, and annotated video."""
