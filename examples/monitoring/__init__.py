"""Prometheus and Grafana for brokers with ``http.listener``: alerts, dashboards and a configuration to start from.

    python -m examples.monitoring     writes all of this again

alerts       which alerts there are, and for each what makes it fire; the rules and their tests
dashboards   which panels there are
"""
