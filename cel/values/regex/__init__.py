"""Regular expressions in RE2's syntax, run in time linear in text × pattern whatever the pattern is.

What RE2 refuses is refused: back-references, look-around, possessive and stacked repetition, counts above 1,000. Begin
with `matching`; `syntax` reads a pattern, `program` makes instructions of it, `search` runs them.
"""
