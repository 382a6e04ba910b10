"""Small masked diffusion language models, the tasks they were trained on, and an exact oracle.

`accel.zoo.load("tiny-llada")` returns a stock `LlamaForCausalLM`, driven bidirectionally, with its
tokenizer. Importing this package loads neither transformers nor a model.
"""
