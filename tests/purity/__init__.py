"""The purity matrix: outputs are the same bits whatever runs beside them, and however the machine is used."""
