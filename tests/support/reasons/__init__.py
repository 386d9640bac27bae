"""The judge of reasons: a slow program that works out from the objects alone whether what the product says is true."""
