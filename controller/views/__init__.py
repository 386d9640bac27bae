"""What the controller's page shows, computed from values: no clock, no server, no thread."""
