"""The Kubernetes CEL environment for devices. Imports nothing of the rest of the project.

Empty until the language is whole: a half CEL would silently give the wrong devices. Until then the controller lets
every claim wait whose class or request has a selector, and says so.
"""
