"""What is kept in memory of watched objects. Pure: a reflector applies these functions to each object that it keeps."""
