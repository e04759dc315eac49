"""Memory SSA. A tensor is a storage and a geometry; each storage has one current value, a graph node."""
