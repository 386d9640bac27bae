"""Builds the parts of the plugin from its settings, and joins them. Nothing is started here."""
