"""From readings to series: which fields there are, who owns what, and the text that Prometheus reads. Pure."""
