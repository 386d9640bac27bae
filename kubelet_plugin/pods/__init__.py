"""Who has what: this node's pods with the devices of their claims, told to monitoring and to people."""
