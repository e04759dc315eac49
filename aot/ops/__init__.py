"""What an ATen operation does to its arguments, decided once from its schema and tags."""
