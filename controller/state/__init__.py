"""What the controller knows, under the one lock of Cluster. Nothing here talks to the API server."""
