"""The `dracaena` command. Settings meet programs here: nothing else may read sys.argv or print for people.

The register() of each module adds one sub-command; what it needs beyond its arguments is imported when it runs.
Nothing imports this package.
"""
