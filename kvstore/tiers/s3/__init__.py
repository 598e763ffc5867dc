"""The cold tier: objects in an S3 bucket."""
