"""The parts that plans are made of, shared by all methods."""
