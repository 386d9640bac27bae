"""The kinds of things that the plugin changes on its node, one file each (changes.change.ThingKind)."""
