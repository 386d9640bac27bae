"""Opaque configuration of our devices: one package per version of the config group.

Here: types, JSON schemas, decoding. Not here: what a policy means for a choice (dracaena.controller.allocation).
"""
