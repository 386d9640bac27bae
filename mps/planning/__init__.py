"""From the wanted and the observed state to the next steps, and to the reports for the plugin. Pure."""
