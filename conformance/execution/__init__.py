"""Gets ranks, sends them their tasks, and decodes their answers."""
