"""Models before they are served: finds them, fetches them, and converts GGUF files.

model_finder        from what `--model` says to a Hugging Face folder; the rest is its parts
download            fetches a named model, and one of the Hugging Face hub
model_cache         folders made of .gguf files
gguf_file           what a .gguf file says about itself
gguf_families       how llama.cpp writes the families that are served
gguf_checks         whether a file can be served
gguf_conversion     a process of its own, with gguf_config: these alone load torch

Nothing here knows the gateway or the worker.
"""
