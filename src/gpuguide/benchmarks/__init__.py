"""What is measured: one file a topic, each declaring its benchmarks."""
