"""Small trained models that come with accel, so that everything here runs offline.

`accel.zoo.load("scenes-flux")` returns a stock `diffusers.FluxPipeline`, and
`accel.zoo.load("tiny-llada")` a masked diffusion language model with its tokenizer.
"""

from accel.zoo.catalogue import Card, card, load, names, prompts
from accel.zoo.language.loading import LanguageModel

__all__ = ["Card", "LanguageModel", "card", "load", "names", "prompts"]
