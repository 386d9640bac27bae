"""The kinds of devices: each is one small file behind the interface in device_kind.py. Pure.

docs/design/0028-device-kinds.md says why, and what a new kind has to provide.
"""
