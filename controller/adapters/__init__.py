"""What the controller asks of the outside, translated. One outside thing a file; nothing is decided here."""
