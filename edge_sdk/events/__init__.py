"""Events: rules that make events of results, the pictures that go with them, and annotated video."""
