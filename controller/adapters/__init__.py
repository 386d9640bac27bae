"""What the controller asks of the outside, translated. One outside thing per file; nothing is decided here."""
