"""Names that only a framework uses, so that vulture does not call them dead."""

exception  # what `__exit__` is handed
