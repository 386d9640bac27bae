"""What every long-running program of this project needs: clock, settings, logs, health and metrics endpoint.

Services and edges only: nothing here knows a GPU, a claim or the Kubernetes API.
"""
