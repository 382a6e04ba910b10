"""Tiny random models and pipelines that run a whole generation in a fraction of a second."""

from tests.tiny.cases import Case, Pipeline, Request
from tests.tiny.models import DENOISERS, shaken
from tests.tiny.pipelines import CASES, assemble

__all__ = ["CASES", "DENOISERS", "Case", "Pipeline", "Request", "assemble", "shaken"]
