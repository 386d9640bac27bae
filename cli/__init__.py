"""The one `dracaena` command. Here settings meet programs: nothing else may read sys.argv or print for people.

Each module adds one sub-command by its register(); what a command needs beyond its arguments is imported when it runs.
Nothing imports this package.
"""
