"""The ways of carrying out a plan."""
