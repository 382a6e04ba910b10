"""Small trained pipelines that come with accel, so that everything here runs offline.

`accel.zoo.load("scenes-flux")` returns a stock `diffusers.FluxPipeline`.
"""

from accel.zoo.catalogue import Card, card, load, names, prompts

__all__ = ["Card", "card", "load", "names", "prompts"]
