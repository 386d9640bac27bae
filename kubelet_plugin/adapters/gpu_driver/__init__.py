"""The files of the installed GPU driver, and who has it open."""
