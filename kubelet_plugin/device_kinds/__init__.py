"""The kinds of devices, and what follows kind by kind: what is published, what a claim gets and who holds it. Pure.

Each kind is one small file behind the interface in device_kind.py. docs/design/device-kinds.md says why, and what
a new kind has to provide.
"""
