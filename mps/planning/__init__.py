"""From what is wanted and what was seen to the next steps, and to what the plugin is told. Pure."""
