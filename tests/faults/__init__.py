"""Faults that other accelerators were caught in, and bad input: none of them here."""
