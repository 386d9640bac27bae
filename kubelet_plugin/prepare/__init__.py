"""Pure: a claim's devices on this node, and the documents that describe them (CDI spec, checkpoint, podlist).

Values in, values out: nothing here reads a file, a clock or the API. The services carry out what is planned here.
"""
