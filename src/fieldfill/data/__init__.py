"""Data: files, axes, grids, records and crops of them, transforms to unitless tensors, cells to hold out."""
