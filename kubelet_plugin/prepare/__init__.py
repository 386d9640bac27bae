"""Pure: a prepared claim as a value, and the documents that say what it has (checkpoint, podlist, parts of a CDI spec).

Values in, values out: nothing here reads a file, a clock or the API. What a claim gets is planned in device_kinds.
"""
