"""One outside thing per file. They translate and decide nothing."""
