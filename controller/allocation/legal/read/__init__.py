"""The API's objects as values: classes, claims and slices, read strictly, and the features that the cluster has on."""
