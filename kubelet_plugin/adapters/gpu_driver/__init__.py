"""The files of the installed GPU driver that containers get."""
