"""The real ground: Kubernetes' own programs, a real container runtime and our two programs, on one machine.

`make e2e` runs these tests (docs/dev/tests.md). The modules that are no tests build and run the real programs; they
know nothing of pytest, except conftest.py.
"""
