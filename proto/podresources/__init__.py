"""Generated code, see dracaena.proto."""
