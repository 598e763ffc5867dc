"""What a run leaves behind: report.json, report.html and calibration.json."""
