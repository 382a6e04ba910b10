"""Methods for diffusion language models will live here; this version ships none."""

__all__: list[str] = []
