"""What `kvstitch doctor` looks at: one file per subject. None of them loads torch but deep.py."""
