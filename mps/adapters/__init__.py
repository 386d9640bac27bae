"""One outside thing each: the control program, processes, compute modes, the folder that is shared with the plugin."""
