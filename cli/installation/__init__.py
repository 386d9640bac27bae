"""Pure checks of an installation: a snapshot of what the API server shows goes in, findings and a bundle come out."""
