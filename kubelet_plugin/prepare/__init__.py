"""Pure: what a claim's devices are on this node, and the documents that say so (CDI spec, checkpoint, podlist).

Values in, values out: nothing here reads a file, a clock or the API. The services carry out what is planned here.
"""
