"""The checks of `kvstitch doctor`, one file per subject. Only deep.py loads torch."""
