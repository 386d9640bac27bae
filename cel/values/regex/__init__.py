"""Go's regular expressions, which Kubernetes uses, searched by RE2 in linear time whatever the pattern is.

Begin with `matching`. `syntax` reads a pattern as Go does, refuses what Go refuses and writes what means the same to
RE2 (`unicode_classes`); `engine` is RE2.
"""
