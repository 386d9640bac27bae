"""The API's objects as values: classes, claims and slices, read strictly, with what the cluster has switched on."""
