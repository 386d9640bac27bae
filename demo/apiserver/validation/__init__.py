"""What makes an object invalid: pure functions from documents to field errors, one module per family of kinds.

The documents are canonical (decoded, defaulted). The wording is that of Kubernetes, because clients and people read it.
Nothing here reads storage or changes a document.
"""

from __future__ import annotations
