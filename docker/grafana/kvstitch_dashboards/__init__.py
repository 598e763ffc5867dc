"""The Grafana dashboards, as code: `python -m kvstitch_dashboards` in docker/grafana writes the
JSON that Grafana reads. Knows no service: a test compares the names used here with those declared.
"""
