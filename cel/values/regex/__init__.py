"""Regular expressions as Go has them, which Kubernetes uses, searched by RE2: linear in time whatever the pattern is.

Begin with `matching`. `syntax` reads a pattern as Go does, refuses what Go refuses and writes what RE2 takes for the
same (`unicode_classes`); `engine` is RE2.
"""
