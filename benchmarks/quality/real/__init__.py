"""Real text on a real model: prompts in the format that is served, and tables of what is measured.

    python -m benchmarks.quality.real.prompts --model FOLDER --suite nq --split test --out FILE
    python -m benchmarks.fidelity --real --model FOLDER --prompts FILE --dtype bfloat16 --out DIR
    python -m benchmarks.quality.real.table --records DIR/SAMPLES --prompts FILE --model FOLDER

Every suite has a development and a test part with other questions; what is tuned is tuned on the
former. The fidelity bench prefills and decodes, with the engine's own code.
"""
