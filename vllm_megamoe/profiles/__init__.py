"""What each product and operator revision takes: data, each cell with its source."""
