"""Who has what: this node's pods with the devices of their claims, reported to monitoring and to users."""
