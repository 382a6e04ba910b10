"""The check for a machine with an accelerator: `python -m tests.benchmarks.device`."""
