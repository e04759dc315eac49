"""Many cases: handed to workers, settled in order, stored as they come."""
