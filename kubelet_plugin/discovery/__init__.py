"""What the GPUs of a node are, as values: recordings and texts to a Machine, a Machine to the slices of its pool.

Pure: no file, no driver call, no clock, no log. The adapters bring the bytes, the services carry out what is said here.
"""
