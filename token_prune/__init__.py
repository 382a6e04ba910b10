"""Token reduction methods will live here; this version ships none."""

__all__: list[str] = []
