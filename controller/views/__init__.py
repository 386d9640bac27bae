"""What the controller's page shows, from values: no clock, no server, no thread."""
