"""From timed requests to percentiles, knees, tables and plots."""
