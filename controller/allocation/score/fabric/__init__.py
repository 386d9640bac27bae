"""The choice where Fabric Manager links only whole partitions: what a claim gets, then what all claims of a pod get."""
