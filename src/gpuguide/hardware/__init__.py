"""What a GPU is: detection, the datasheet table and the driver's readings."""
