"""`dracaena exporter`: what the GPUs of one node do, and which container has them, as Prometheus metrics.

`series` is pure: readings in, text out. `adapters` read the GPU driver, podlist.json and /proc; the files at this level
hold state and order.
"""
