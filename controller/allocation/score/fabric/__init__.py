"""The choice where Fabric Manager links whole partitions alone: what claims get, then what all of a pod get."""
