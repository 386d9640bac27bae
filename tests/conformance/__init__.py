"""Cases that another implementation has answered: read from a folder, asked of ours, differences printed."""
