"""Fakes of our ports and builders of values for tests."""
