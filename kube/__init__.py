"""The Kubernetes API as this project uses it: one connection, typed reads, small writes, a cache by watch, Events.

Shared by both programs, the commands and the demo. The official client provides configuration, authentication
and TLS (transport.py, the only file that imports it). List, watch and the objects are our own, because its informer has
no backoff and its typed models take a gigabyte at 5,000 nodes.
"""
