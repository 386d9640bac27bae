"""What is kept in memory of watched objects. Pure: a reflector applies these to each object before it keeps it."""
