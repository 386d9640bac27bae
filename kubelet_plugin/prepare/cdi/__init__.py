"""What containers get, as CDI specs: device nodes, the driver's files, hooks."""
