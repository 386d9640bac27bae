"""What the controller, the kubelet plugin, the commands and users share: values and documents.

Pure: values in, values out. Nothing here knows a clock, a file, a network, a log or the rest of the project. The only
thing read is package data (the JSON schemas), once, through importlib.resources.
"""
