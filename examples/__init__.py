"""Programs of one page each, and the demo. Every one is run by a test in tests/examples."""
