"""The quant room."""
