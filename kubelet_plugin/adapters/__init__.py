"""The plugin's edges: one outside thing a file. They translate and decide nothing."""
