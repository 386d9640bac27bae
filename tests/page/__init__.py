"""The page of the controller in a real browser: `make page-test`."""
