"""Test bed: tiny random models and pipelines, conformance, faults and units."""
