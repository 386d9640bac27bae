"""The controller's page: who may look, what is served, and when it is made again."""
