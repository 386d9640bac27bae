"""What claims ask for, read once for each content. Claims and classes go in, demands or a refusal come out.

Read in this order: demands (requests with their classes and policies, and who reads and remembers them), shape (what
tells two waiting pods apart, and which of them comes first).
"""
