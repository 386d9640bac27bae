"""One outside thing each: the control program, processes, compute modes, the folder shared with the plugin."""
