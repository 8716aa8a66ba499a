"""Properties of a GPU: detection, the datasheet table and the driver's readings."""
