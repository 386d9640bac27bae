"""The one `dracaena` command: it parses, calls and prints. Nothing imports it."""
