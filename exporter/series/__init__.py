"""From readings to series: the fields, the owners of devices, and the text that Prometheus reads. Pure."""
