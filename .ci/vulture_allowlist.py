"""Names that vulture takes for dead and are not."""

exception  # what `__exit__` is handed

types  # what `__torch_function__` is handed

# Only quoted annotations use these, so that importing the module does not import their library.
ModelMixin
PreTrainedModel
PreTrainedTokenizerBase
