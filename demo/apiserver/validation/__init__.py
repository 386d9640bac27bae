"""What makes an object invalid: pure functions from documents to field errors, one module per family of kinds.

The documents are canonical (decoded, defaulted). What `dracaena validate` checks is checked by the same code
(``findings``). Nothing here reads storage or changes a document.
"""

from __future__ import annotations
