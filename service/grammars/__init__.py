"""Forms of answers: written as grammars, compiled and followed in processes with limits."""
