"""The plugin's edges: one outside thing per file. They translate and decide nothing."""
