"""The chart and the image as an admin installs them, in a world of their own (see run.py)."""
