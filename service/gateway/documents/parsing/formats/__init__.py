"""One file format each: bytes to text and marks. Runs in the parser process."""
