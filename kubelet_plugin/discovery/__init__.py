"""The GPUs of a node as values: recordings and texts to a Machine, a Machine to the slices of its pool.

Pure: no file, no driver call, no clock, no log. The adapters supply the bytes, the services carry out what is decided
here.
"""
